// Conversions of elements equal the slow definition: the nearest representable value, ties to the even mantissa.

#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

using namespace kvx;

template <class E>
E from_bits(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

/// sign, exponent and mantissa spelled out: e exponent bits, m mantissa bits.
double spelled(std::uint32_t bits, int e, int m) {
  const double sign = bits >> (e + m) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> m) & ((1 << e) - 1);
  const double mantissa = std::ldexp(bits & ((1u << m) - 1), -m);
  const int bias = (1 << (e - 1)) - 1;
  if (exponent == (1 << e) - 1) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias) : sign * std::ldexp(1 + mantissa, exponent - bias);
}

template <class E>
constexpr int exponent_bits = std::is_same_v<E, half> ? 5 : 8;
template <class E>
constexpr int mantissa_bits = 15 - exponent_bits<E>;

/// The first element whose distance to |x| no other beats; of two, the one with an even mantissa. Positive finite x.
template <class E>
std::uint32_t nearest(double x) {
  std::uint32_t low = 0, high = (1u << 15) - (1u << mantissa_bits<E>);  // high: infinity
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (static_cast<double>(to_float(from_bits<E>(middle))) <= x ? low : high) = middle;
  }
  const double below = static_cast<double>(to_float(from_bits<E>(low)));
  // Beyond the largest element the next one would be a step further, were there more exponents.
  const double step = below - static_cast<double>(to_float(from_bits<E>(low - (low > 0 ? 1 : 0))));
  const double above = std::isinf(to_float(from_bits<E>(high))) ? below + step : static_cast<double>(to_float(from_bits<E>(high)));
  if (x - below != above - x) return x - below < above - x ? low : high;
  return low % 2 == 0 ? low : high;
}

template <class E>
std::uint32_t wrong_roundings(std::uint32_t first, std::uint64_t stride) {
  std::uint32_t wrong = 0;
  for (std::uint64_t u = first; u < 0x7f800000u; u += stride) {
    float x = 0;
    const auto bits = static_cast<std::uint32_t>(u);
    std::memcpy(&x, &bits, 4);
    const std::uint32_t expected = nearest<E>(static_cast<double>(x));
    wrong += round_to<E>(x).bits != expected;
    wrong += round_to<E>(-x).bits != (expected | 0x8000u);
  }
  return wrong;
}

}  // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern is the number that its fields spell", E, half, bf16) {
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const double expected = spelled(bits, exponent_bits<E>, mantissa_bits<E>);
    const double found = static_cast<double>(to_float(from_bits<E>(bits)));
    wrong += std::isnan(expected) ? !std::isnan(found) : std::memcmp(&expected, &found, 8) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("every element survives the way to float and back", E, half, bf16) {
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const E x = from_bits<E>(bits);
    const E back = round_to<E>(to_float(x));
    wrong += is_nan(to_float(x)) ? !is_nan(to_float(back)) : back != x;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("floats go to the nearest element, ties to even", E, half, bf16) {
  CHECK(wrong_roundings<E>(0, 9973) == 0);  // a prime: every mantissa pattern comes up
  // Around each boundary between two elements: one float below, the tie, one float above.
  std::uint32_t wrong = 0;
  for (std::uint32_t bits = 0; bits + 1 < (1u << 15) - (1u << mantissa_bits<E>); bits += 7) {
    const double a = static_cast<double>(to_float(from_bits<E>(bits))), b = static_cast<double>(to_float(from_bits<E>(bits + 1)));
    const auto tie = static_cast<float>((a + b) / 2);
    for (const float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, infinity)}) {
      wrong += round_to<E>(x).bits != nearest<E>(static_cast<double>(x));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("too large, infinite and not a number", E, half, bf16) {
  const auto infinite = static_cast<std::uint16_t>((1u << 15) - (1u << mantissa_bits<E>));
  CHECK(round_to<E>(largest_float).bits == infinite);
  CHECK(round_to<E>(-largest_float).bits == (infinite | 0x8000u));
  CHECK(round_to<E>(infinity).bits == infinite);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    float x = 0;
    std::memcpy(&x, &bits, 4);
    CHECK(is_nan(to_float(round_to<E>(x))));
    CHECK((round_to<E>(x).bits >> 15) == (bits >> 31));
  }
  CHECK(round_to<float>(-0.0f) == 0);
}
