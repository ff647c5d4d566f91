// exp and log stay within two units in the last place of double's, and their bits are written down.

#include <kvx/core/math.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

using kvx::infinity;

float float_of(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, 4);
  return x;
}

std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, 4);
  return bits;
}

/// Distance of `found` from `expected`, in units of the last place of a float of that size.
double error(float found, double expected) {
  if (std::isinf(found)) return expected > static_cast<double>(kvx::largest_float) ? 0 : 1e9;
  const int exponent = expected == 0 ? -149 : std::max(std::ilogb(expected) - 23, -149);
  return std::abs(static_cast<double>(found) - expected) / std::ldexp(1.0, exponent);
}

}  // namespace

TEST_CASE("exp of every 1021st float") {
  double worst = 0;
  for (std::uint64_t u = 0; u < 0x7f800000u; u += 1021) {
    for (const float x : {float_of(static_cast<std::uint32_t>(u)), -float_of(static_cast<std::uint32_t>(u))}) {
      if (x < -200 || x > 200) continue;
      worst = std::max(worst, error(kvx::exp(x), std::exp(static_cast<double>(x))));
    }
  }
  for (float x = -104; x < 89; x += 1.0f / 4096) worst = std::max(worst, error(kvx::exp(x), std::exp(static_cast<double>(x))));
  CHECK(worst <= 2);
  MESSAGE("largest error of exp: " << worst << " ulp");
}

TEST_CASE("log of every 1021st float") {
  double worst = 0;
  for (std::uint64_t u = 1; u < 0x7f800000u; u += 1021) {
    const float x = float_of(static_cast<std::uint32_t>(u));
    worst = std::max(worst, error(kvx::log(x), std::log(static_cast<double>(x))));
  }
  for (std::uint32_t u = 0x3f700000u; u < 0x3f900000u; u += 13)  // around 1, where the result vanishes
    worst = std::max(worst, error(kvx::log(float_of(u)), std::log(static_cast<double>(float_of(u)))));
  CHECK(worst <= 2);
  MESSAGE("largest error of log: " << worst << " ulp");
}

TEST_CASE("exp never falls, and is never negative") {
  float last = 0;
  int falls = 0;
  for (float x = -110; x < 90; x += 1.0f / 1024) {
    const float y = kvx::exp(x);
    falls += !(y >= last);
    last = y;
  }
  CHECK(falls == 0);
}

TEST_CASE("special values") {
  CHECK(std::isnan(kvx::exp(kvx::quiet_nan)));
  CHECK(kvx::exp(infinity) == infinity);
  CHECK(bits_of(kvx::exp(-infinity)) == 0);
  CHECK(kvx::exp(-0.0f) == 1);
  CHECK(kvx::exp(88.72283f) < infinity);
  CHECK(kvx::exp(88.72284f) == infinity);
  CHECK(kvx::exp(-103.9f) == 0x1p-149f);
  CHECK(kvx::exp(-104.5f) == 0);
  CHECK(kvx::exp(-kvx::largest_float) == 0);
  CHECK(kvx::exp(kvx::largest_float) == infinity);
  CHECK(std::isnan(kvx::log(kvx::quiet_nan)));
  CHECK(std::isnan(kvx::log(-1)));
  CHECK(std::isnan(kvx::log(-0x1p-149f)));
  CHECK(std::isnan(kvx::log(-infinity)));
  CHECK(kvx::log(0) == -infinity);
  CHECK(kvx::log(-0.0f) == -infinity);
  CHECK(kvx::log(infinity) == infinity);
  CHECK(bits_of(kvx::log(1)) == 0);
}

// The same bits at run time as in the compiler, whatever the flags: a fold of all results over a sweep.
constexpr std::uint32_t exp_bits(int step) {
  std::uint32_t fold = 0;
  for (int i = -2500; i <= 2200; i += step) fold = fold * 31 + __builtin_bit_cast(std::uint32_t, kvx::exp(static_cast<float>(i) * 0.04f));
  return fold;
}
constexpr std::uint32_t log_bits(std::uint32_t step) {
  std::uint32_t fold = 0;
  for (std::uint32_t u = 1000; u < 0x7f000000u; u += step)
    fold = fold * 31 + __builtin_bit_cast(std::uint32_t, kvx::log(__builtin_bit_cast(float, u)));
  return fold;
}

TEST_CASE("the compiler and the machine compute the same bits") {
  constexpr std::uint32_t exp_folded = exp_bits(5), log_folded = log_bits(0x223345u);
  volatile std::uint32_t step = 5;  // nothing that the compiler could know

  CHECK(exp_bits(static_cast<int>(step)) == exp_folded);
  step = 0x223345u;
  CHECK(log_bits(step) == log_folded);
  CHECK(exp_folded == 3102564738u);
  CHECK(log_folded == 3397053822u);
}
