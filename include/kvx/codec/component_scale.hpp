#pragma once
// What an entropy-first stream knows of a component: its scale and shape, in whole numbers, so that tables follow from it the same way
// everywhere.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>

#include <cstdint>

namespace kvx {

/// Logarithms of scales and steps count in units of 2^-8: 256 is a factor of two.
inline constexpr int scale_units = 256;

/// The spread of a component's coefficients.
///
/// log2_scale  of the standard deviation, in units of 2^-8
/// laplace     how much of a Laplace density is mixed into the Gaussian one, in quarters: 0 to 4
struct component_scale {
  std::int16_t log2_scale = 0;
  std::uint8_t laplace = 0;
  std::uint8_t reserved = 0;
  friend constexpr bool operator==(const component_scale&, const component_scale&) = default;
};
static_assert(sizeof(component_scale) == 4);

/// 2^(code / 256), code in -32768..32767: powers from 2^-126 to 2^126, held there beyond.
///
/// exactness   the same bits everywhere: 2^(i / 256) by products of 2^(1/2), 2^(1/4), ..., each rounded once to double
KVX_HD constexpr float power_of_code(int code) {
  constexpr double roots[8] = {0x1.00b1afa5abcbfp+0, 0x1.0163da9fb3335p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0,
                               0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0, 0x1.6a09e667f3bcdp+0};
  const int clamped = code < -126 * 256 ? -126 * 256 : code > 126 * 256 ? 126 * 256 : code;
  const int whole = clamped >> 8, part = clamped & 255;
  double x = 1;
  for (int i = 0; i < 8; ++i) {
    if ((part >> i & 1) != 0) x *= roots[i];
  }
  const float fraction = static_cast<float>(x);
  return fraction * __builtin_bit_cast(float, static_cast<std::uint32_t>(whole + 127) << 23);
}
static_assert(power_of_code(0) == 1 && power_of_code(256) == 2 && power_of_code(-512) == 0.25f && power_of_code(128) == 0x1.6a09e6p+0f);

/// The code nearest to log2 of a scale; the smallest for 0, negative numbers and NaN.
///
/// exactness   integers after one comparison a bit: found by bisection over power_of_code, so that it is its inverse
KVX_HD constexpr std::int16_t code_of_power(float x) {
  constexpr int lowest = -126 * 256, highest = 126 * 256;
  if (!(x > power_of_code(lowest))) return lowest;
  if (x >= power_of_code(highest)) return highest;
  int low = lowest, high = highest;  // power(low) <= x < power(high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (power_of_code(middle) <= x ? low : high) = middle;
  }
  const float below = x / power_of_code(low), above = power_of_code(high) / x;
  return static_cast<std::int16_t>(above < below ? high : low);
}
static_assert(code_of_power(1) == 0 && code_of_power(4) == 512 && code_of_power(0) == -126 * 256 && code_of_power(1.0014f) == 1);

}  // namespace kvx
