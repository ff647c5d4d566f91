#pragma once
// The two quantisers: one step for every coefficient with a dead zone (ours), and a range for every run of components and token (faithful).

#include <kvx/codec/scale_tables.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>

#include <cstdint>

namespace kvx {

/// One step for a whole stream, with a dead zone: a policy of a chain.
///
/// rounding    |v| = floor(|x| / step + rounding / 256): below a half, small coefficients become 0, whose bits are the cheapest
/// source      ours, measured: .30, with centroids for reconstruction
struct dead_zone {
  int rounding = 77;
  friend constexpr bool operator==(const dead_zone&, const dead_zone&) = default;
};

/// What no 16-bit symbol holds; such a coefficient, or NaN, does not fit the stream.
inline constexpr std::int32_t beyond_symbols = 32768;

/// The symbol of a coefficient: -32767..32767, or beyond_symbols.
///
/// exactness   the product of two floats is exact in double, one sum is rounded, the rest is cut off: the same everywhere
KVX_HD constexpr std::int32_t quantised(float x, float inverse_step, int rounding) {
  const double magnitude = static_cast<double>(x < 0 ? -x : x) * static_cast<double>(inverse_step) + static_cast<double>(rounding) / 256;
  if (!(magnitude < beyond_symbols)) return beyond_symbols;
  const auto n = static_cast<std::int32_t>(magnitude);
  return x < 0 ? -n : n;
}
static_assert(quantised(0.69f, 1, 77) == 0 && quantised(-0.71f, 1, 77) == -1 && quantised(8.f, .5f, 77) == 4);
static_assert(quantised(40000, 1, 77) == beyond_symbols && quantised(-32767, 1, 77) == -32767);

/// The coefficient that a symbol stands for: its level times the step.
///
/// shapes      levels (scale_tables::levels) of the component's alphabet; unit the step over level_units
/// exactness   one product, rounded once: the same everywhere
KVX_HD constexpr float dequantised(std::int32_t v, const std::uint16_t* levels, int rounding, float unit) {
  const std::int32_t n = v < 0 ? -v : v;
  const std::int32_t level =
      n < scale_tables::levels ? levels[n] : scale_tables::level_units * n + scale_tables::level_units / 2 - 4 * rounding;
  return static_cast<float>(v < 0 ? -level : level) * unit;
}

/// A range for every run of components and token, and as many bits as the plan says: a policy of a chain.
struct bit_groups {
  friend constexpr bool operator==(const bit_groups&, const bit_groups&) = default;
};

/// Where the levels of a run lie, as it is stored.
struct run_range {
  half shift;
  half scale;
  friend constexpr bool operator==(const run_range&, const run_range&) = default;
};
static_assert(sizeof(run_range) == 4);

/// The range of values between two, with 2^bits levels: shift = low, scale = (high - low) / (2^bits - 1), both rounded to half.
KVX_HD constexpr run_range make_range(float low, float high, int bits) {
  const half shift = round_to<half>(low);
  return {shift, round_to<half>((high - low) / static_cast<float>((1 << bits) - 1))};
}

/// Whether half holds both ends: values beyond 65,504 have no range.
KVX_HD constexpr bool is_finite(const run_range& r) { return (r.shift.bits & 0x7c00u) != 0x7c00u && (r.scale.bits & 0x7c00u) != 0x7c00u; }

/// The level nearest to a value of a run; 0 where the run is constant.
KVX_HD constexpr std::int32_t level_of(float x, const run_range& r, int bits) {
  const auto scale = static_cast<double>(to_float(r.scale));
  if (!(scale > 0)) return 0;
  const double level = rounded_product(static_cast<double>(x) - static_cast<double>(to_float(r.shift)), 1.0 / scale) + 0.5;
  const std::int32_t most = (1 << bits) - 1;
  return !(level > 0) ? 0 : level >= most ? most : static_cast<std::int32_t>(level);
}

/// The value of a level.
KVX_HD constexpr float value_of(std::int32_t level, const run_range& r) {
  return multiply_add(static_cast<float>(level), to_float(r.scale), to_float(r.shift));
}
static_assert(value_of(level_of(3, make_range(1, 4, 2), 2), make_range(1, 4, 2)) == 3);
static_assert(level_of(5, make_range(5, 5, 4), 4) == 0 && value_of(0, make_range(5, 5, 4)) == 5);
static_assert(!is_finite(make_range(0, 70000.f * 15, 4)) && !is_finite(make_range(-70000, 0, 8)));

}  // namespace kvx
