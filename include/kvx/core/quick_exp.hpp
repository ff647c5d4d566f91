#pragma once
// exp of numbers that are not positive, as short as ranking needs it: vectors of floats can follow it to the bit.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>

#include <cstdint>

namespace kvx {

/// What quick_exp computes with: the kernels name the same numbers.
struct quick_exp_numbers {
  static constexpr float lowest = -87;  // below it the power would be subnormal
  static constexpr float log2_e = 0x1.715476p+0f;
  static constexpr float ln2_high = 0x1.62e4p-1f;    // 15 bits: n * ln2_high is exact
  static constexpr float ln2_low = 0x1.7f7d1cp-20f;  // the next 24 bits of ln 2
  static constexpr float series[7] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
};

/// e^x for x <= 0.
///
/// exactness   within 4 units in the last place; the same bits everywhere, since every product and every sum is a float rounded by itself
/// errors      NaN gives NaN; 0 below -87, where the power falls under 1.7e-38
/// cost        a third of `exp`, and of its vectors a fifth
/// source      as `exp`; Taylor coefficients up to the sixth power
KVX_HD constexpr float quick_exp(float x) {
  using c = quick_exp_numbers;
  if (is_nan(x)) return x;
  if (x < c::lowest) return 0;
  constexpr float whole = 0x1.8p23f;  // a float this large has no fraction left
  const float n = (rounded_product(x, c::log2_e) + whole) - whole;
  const float r = (x - n * c::ln2_high) - rounded_product(n, c::ln2_low);
  constexpr float series[7] = {c::series[0], c::series[1], c::series[2], c::series[3], c::series[4], c::series[5], c::series[6]};
  float p = series[0];  // a copy: device code has no array that is a member
  for (int i = 1; i < 7; ++i) p = rounded_product(p, r) + series[i];
  return p * __builtin_bit_cast(float, static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23);
}
static_assert(quick_exp(0) == 1 && quick_exp(-infinity) == 0 && quick_exp(-87.5f) == 0 && is_nan(quick_exp(quiet_nan)));
static_assert(quick_exp(-1) == 0x1.78b564p-2f && quick_exp(-87) > 0x1p-126f);

}  // namespace kvx
