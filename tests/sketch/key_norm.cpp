// The norm byte is the nearest step of an eighth of an octave.

#include <kvx/sketch/key_norm.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>

TEST_CASE("every binary order: the nearest of 8 log2(norm) + 128, from 1 to 255") {
  for (float square = 0x1p-40f; square < 0x1p40f; square *= 1.0009765625f) {
    const double exact = 4 * std::log2(static_cast<double>(square)) + 128;
    if (std::fabs(exact - std::floor(exact) - 0.5) < 1e-5) continue;  // a border: the next test
    const double expected = std::fmin(std::fmax(std::round(exact), 1), 255);
    if (kvx::norm_byte(square) != expected) FAIL_CHECK("square norm " << square << " has byte " << int{kvx::norm_byte(square)});
  }
}

TEST_CASE("between neighbouring floats at a border the byte moves by one") {
  for (int b = 1; b < 255; ++b) {
    auto border = static_cast<float>(std::exp2((b + 0.5 - 128) / 4));
    if (static_cast<double>(border) < std::exp2((b + 0.5 - 128) / 4)) border = std::nextafter(border, 1e30f);  // the first float above it
    CHECK(kvx::norm_byte(border) == b + 1);
    CHECK(kvx::norm_byte(std::nextafter(border, 0.0f)) == b);
  }
}

TEST_CASE("the ends, and keys that are never found") {
  CHECK(kvx::norm_byte(0) == 1);
  CHECK(kvx::norm_byte(std::numeric_limits<float>::denorm_min()) == 1);
  CHECK(kvx::norm_byte(0x1.fffffep119f) == 255);
  for (const float x : {0x1p120f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(kvx::norm_byte(x) == kvx::never_found);
  }
  CHECK(kvx::norm_values[kvx::never_found] == 0);
  for (int b = 1; b < 256; ++b) {
    const double exact = std::exp2((b - 128) / 8.0);
    CHECK(std::fabs(static_cast<double>(kvx::norm_values[static_cast<std::size_t>(b)]) - exact) <= 0x1p-24 * exact);
  }
}
