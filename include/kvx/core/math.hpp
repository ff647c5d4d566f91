#pragma once
// exp and log in single precision whose bits depend on neither compiler, instruction set nor contraction.

#include <kvx/core/annotate.hpp>

#include <cstdint>
#include <limits>

namespace kvx {

/// Constants that device code may name (a constexpr host function such as std::numeric_limits<float>::infinity() is refused there).
inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float largest_float = std::numeric_limits<float>::max();

/// True for NaN only; plain comparisons, so that device code and constant expressions may ask.
KVX_HD constexpr bool is_nan(float x) { return !(x == x); }

/// False for NaN and infinity.
KVX_HD constexpr bool is_finite(float x) { return x - x == 0; }

/// a * b + c with one rounding to float at the end.
///
/// exactness   the product of two floats is exact in double, so a fused and an unfused multiply-add give the same bits
KVX_HD constexpr float multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

/// e^x.
///
/// exactness   within 2 units in the last place of the true value, subnormal results included; the same bits everywhere
/// errors      NaN gives NaN; +inf gives +inf; -inf gives 0
/// cost        seven multiply-adds
/// source      Cody and Waite 1980: argument reduction by ln 2 in two parts; Taylor coefficients on |r| <= ln 2 / 2
KVX_HD constexpr float exp(float x) {
  if (is_nan(x)) return x;
  if (x > 88.8f) return infinity;  // e^88.73 is the largest float
  if (x < -104.0f) return 0.0f;    // e^-103.98 is half of the smallest subnormal
  constexpr float log2_e = 0x1.715476p+0f;
  constexpr float ln2_high = 0x1.62e4p-1f;      // 15 bits: n * ln2_high is exact
  constexpr float ln2_low = 0x1.7f7d1cp-20f;    // the next 24 bits of ln 2
  const double scaled = static_cast<double>(x) * static_cast<double>(log2_e);
  const int n = static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double reduced = static_cast<double>(x) - static_cast<double>(n) * static_cast<double>(ln2_high);
  const float r = static_cast<float>(reduced - static_cast<double>(n) * static_cast<double>(ln2_low));
  float p = 1.0f / 5040;
  p = multiply_add(p, r, 1.0f / 720);
  p = multiply_add(p, r, 1.0f / 120);
  p = multiply_add(p, r, 1.0f / 24);
  p = multiply_add(p, r, 1.0f / 6);
  p = multiply_add(p, r, 0.5f);
  p = multiply_add(p, r, 1.0f);
  const double power = __builtin_bit_cast(double, static_cast<std::uint64_t>(1023 + n) << 52);
  const double value = (static_cast<double>(p) * static_cast<double>(r) + 1.0) * power;
  return static_cast<float>(value > static_cast<double>(largest_float) ? static_cast<double>(infinity) : value);
}
static_assert(exp(0) == 1 && exp(-infinity) == 0 && exp(infinity) == infinity && exp(1) == 0x1.5bf0a8p+1f);

/// Natural logarithm.
///
/// exactness   within 2 units in the last place of the true value; the same bits everywhere
/// errors      0 gives -inf; negative numbers and NaN give NaN; +inf gives +inf
/// cost        one division, six multiply-adds
/// source      log(2^n m) = n ln 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2)); Abramowitz and Stegun 4.1.27
KVX_HD constexpr float log(float x) {
  if (x == 0) return -infinity;
  if (!(x > 0)) return quiet_nan;
  if (x == infinity) return infinity;
  auto bits = __builtin_bit_cast(std::uint64_t, static_cast<double>(x));  // a double: no float is subnormal in it
  int n = static_cast<int>(bits >> 52) - 1023;
  double m = __builtin_bit_cast(double, (bits & 0xfffffffffffffu) | 0x3ff0000000000000u);  // [1, 2)
  if (m > 1.4142135381698608) {
    m *= 0.5;
    n += 1;
  }
  const double s = (m - 1) / (m + 1);  // |s| <= .1716
  const float t = static_cast<float>(s);
  const float z = static_cast<float>(static_cast<double>(t) * static_cast<double>(t));
  float p = 1.0f / 11;
  p = multiply_add(p, z, 1.0f / 9);
  p = multiply_add(p, z, 1.0f / 7);
  p = multiply_add(p, z, 1.0f / 5);
  p = multiply_add(p, z, 1.0f / 3);
  const float tail = static_cast<float>(static_cast<double>(p) * static_cast<double>(z));  // atanh(s) / s - 1
  const double series = s + static_cast<double>(t) * static_cast<double>(tail);
  constexpr float ln2_high = 0x1.62e4p-1f;
  constexpr float ln2_low = 0x1.7f7d1cp-20f;
  const double whole = static_cast<double>(n) * static_cast<double>(ln2_low) + 2 * series;
  return static_cast<float>(static_cast<double>(n) * static_cast<double>(ln2_high) + whole);
}
static_assert(log(1) == 0 && log(0) == -infinity && log(infinity) == infinity && log(2) == 0x1.62e43p-1f);

}  // namespace kvx
