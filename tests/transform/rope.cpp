// Rotary embeddings: undone and done again to the rounding of floats, for both orders, part of a head, and every scaling of frequencies.

#include <kvx/transform/rope.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

using namespace kvx;

namespace {

using order = rope_pairs::order;

std::vector<rope> variants(order channels, int dims) {
  const rope plain{.pairs = {channels, dims}};
  rope linear = plain, llama = plain, yarn = plain, loud = plain;
  linear.scaled = rope::scaling::linear;
  linear.factor = 4;
  llama.base = 500000;
  llama.scaled = rope::scaling::llama3;
  llama.factor = 8;
  yarn.scaled = rope::scaling::yarn;
  yarn.factor = 40;
  yarn.original_tokens = 4096;
  loud = yarn;
  loud.magnitude = 1.5;
  return {plain, linear, llama, yarn, loud};
}

}  // namespace

TEST_CASE("a turn undone gives the key back, to the rounding of floats") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const std::vector<std::int64_t> positions = {0, 1, 5, 1000, 8191, 131071, 1000000};
  for (const order channels : {order::none, order::interleaved, order::halves}) {
    for (const int head : {2, 64, 80, 128}) {
      for (const int dims : {head, head / 4 * 2}) {
        for (const rope& r : variants(channels, dims)) {
          const rope_turns turns(r, positions);
          for (std::size_t t = 0; t < positions.size(); ++t) {
            std::vector<float> key(static_cast<std::size_t>(head));
            for (auto& x : key) x = 100 * normal(random);
            std::vector<float> moved = key;
            turn_key(moved.data(), r.pairs, turns.of(static_cast<std::int64_t>(t)), turns.magnitude(), true);
            for (int d = 0; d < head; ++d) {
              if (channels == order::none || d >= dims) CHECK(moved[static_cast<std::size_t>(d)] == key[static_cast<std::size_t>(d)]);
            }
            turn_key(moved.data(), r.pairs, turns.of(static_cast<std::int64_t>(t)), turns.magnitude(), false);
            bool near = true;
            for (int d = 0; d < head; ++d) {
              const auto i = static_cast<std::size_t>(d), j = static_cast<std::size_t>(r.pairs.partner(d));
              near = near && std::fabs(moved[i] - key[i]) <= std::hypot(key[i], key[j]) * 0x1p-22f;
            }
            CHECK(near);
          }
        }
      }
    }
  }
}

TEST_CASE("a turn is a product of complex numbers, whose channels lie side by side or half a head apart") {
  const std::vector<std::int64_t> positions = {3, 70, 900};
  for (const order channels : {order::interleaved, order::halves}) {
    for (const rope& r : variants(channels, 16)) {
      const rope_turns turns(r, positions);
      const std::vector<double> frequencies = rope_frequencies(r);
      for (std::size_t t = 0; t < positions.size(); ++t) {
        std::vector<float> key(20);
        for (std::size_t d = 0; d < key.size(); ++d) key[d] = static_cast<float>(d) - 7.5f;
        std::vector<float> turned = key;
        turn_key(turned.data(), r.pairs, turns.of(static_cast<std::int64_t>(t)), turns.magnitude(), true);
        for (std::size_t i = 0; i < 8; ++i) {
          const std::size_t a = channels == order::halves ? i : 2 * i, b = channels == order::halves ? i + 8 : 2 * i + 1;
          const std::complex<double> expected =
              std::complex<double>(key[a], key[b]) * std::polar(rope_magnitude(r), static_cast<double>(positions[t]) * frequencies[i]);
          CHECK(std::fabs(turned[a] - expected.real()) < 1e-5);
          CHECK(std::fabs(turned[b] - expected.imag()) < 1e-5);
        }
      }
    }
  }
}

TEST_CASE("frequencies: plain, divided, and those of Llama 3.1 and YaRN where the papers say") {
  const auto all = variants(order::halves, 128);
  const std::vector<double> plain = rope_frequencies(all[0]), linear = rope_frequencies(all[1]);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(plain[i] == doctest::Approx(std::pow(10000.0, -static_cast<double>(i) / 64)));
    CHECK(linear[i] == doctest::Approx(plain[i] / 4));
  }
  const std::vector<double> llama = rope_frequencies(all[2]);
  for (std::size_t i = 0; i < llama.size(); ++i) {
    const double f = std::pow(500000.0, -static_cast<double>(i) / 64), wavelength = 2 * std::numbers::pi / f;
    if (wavelength < 8192.0 / 4) {
      CHECK(llama[i] == doctest::Approx(f));
    } else if (wavelength > 8192) {
      CHECK(llama[i] == doctest::Approx(f / 8));
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      CHECK(llama[i] == doctest::Approx((1 - smooth) * f / 8 + smooth * f));
    }
  }
  // YaRN with 4,096 tokens and a base of 10,000: pairs before 20 turn more than 32 times, pairs from 46 on less than once.
  const std::vector<double> yarn = rope_frequencies(all[3]);
  CHECK(yarn[20] == doctest::Approx(plain[20]));
  CHECK(yarn[21] < plain[21]);
  CHECK(yarn[45] > plain[45] / 40 * 1.01);
  CHECK(yarn[46] == doctest::Approx(plain[46] / 40));
  CHECK(rope_magnitude(all[3]) == doctest::Approx(0.1 * std::log(40.0) + 1));
  CHECK(rope_magnitude(all[4]) == 1.5);
  CHECK(rope_magnitude(all[2]) == 1);
}

TEST_CASE("misuse") {
  CHECK_THROWS_AS(rope_frequencies({.pairs = {order::halves, 7}}), usage_error);
  CHECK_THROWS_AS(rope_frequencies({.pairs = {order::halves, 8}, .base = 1}), usage_error);
  CHECK_THROWS_AS(rope_frequencies({.pairs = {order::halves, 8}, .factor = 0}), usage_error);
}
