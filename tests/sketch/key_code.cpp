// Keys are encoded on the host to the bits of the definition, by every instruction set, and their codes mean what they say.

#include <kvx/sketch/host/key_code.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/instruction_sets.hpp"
#include "support/key_code.hpp"

namespace {

using kvx::key_sketch;
using weighting = key_sketch::weighting;

template <class E>
std::vector<E> random_keys(int tokens, int dim, unsigned seed, float common = 2, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(static_cast<std::size_t>(dim));
  for (float& m : mean) m = common * normal(random);
  std::vector<E> keys;
  for (int i = 0; i < tokens * dim; ++i) {
    keys.push_back(kvx::round_to<E>(mean[static_cast<std::size_t>(i % dim)] + spread * normal(random)));
  }
  return keys;
}

std::vector<float> random_balance(int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(.1f, 4);
  std::vector<float> balance(static_cast<std::size_t>(dim));
  for (float& a : balance) a = uniform(random);
  return balance;
}

/// The host's code of a page, by one instruction set; rows lie `stride` apart, NaN between them.
template <class E>
kvx::test::coded_page encode(const key_sketch& s, const std::vector<E>& keys, int dim, const float* balance, kvx::instruction_set set,
                             int gap = 3) {
  const int tokens = static_cast<int>(keys.size()) / dim;
  const int stride = dim + gap;
  std::vector<E> rows(static_cast<std::size_t>(tokens * stride), kvx::round_to<E>(std::numeric_limits<float>::quiet_NaN()));
  for (int t = 0; t < tokens; ++t) std::copy_n(keys.begin() + t * dim, dim, rows.begin() + t * stride);
  kvx::test::coded_page page(s, dim, tokens);
  const auto encoder = kvx::make_key_encoder<E>(s, dim, kvx::simd::encode_kernels_of(set));
  kvx::encode_page(encoder, rows.data(), stride, tokens, balance, page.columns());
  return page;
}

template <class E>
void check_bits(const key_sketch& s, const std::vector<E>& keys, int dim, const float* balance) {
  const auto expected = kvx::test::encode_page_slowly(s, keys, dim, balance);
  for (const auto set : kvx::test::instruction_sets()) {
    CAPTURE(kvx::name_of(set));
    const auto page = encode(s, keys, dim, balance, set);
    CHECK(page.signs == expected.signs);
    CHECK(page.norms == expected.norms);
    CHECK(page.means == expected.means);
    CHECK(page.magnitudes == expected.magnitudes);
    CHECK(page.weights == expected.weights);
  }
}

}  // namespace

TEST_CASE("every dim, subspace and width of code: the bits of the definition") {
  for (int dim = 1; dim <= 576; dim += dim < 72 ? 1 : 37) {
    CAPTURE(dim);
    const auto keys = random_keys<kvx::bf16>(9, dim, static_cast<unsigned>(dim));
    const auto balance = random_balance(dim, 5);
    for (const int m : {4, 8, 16}) {
      for (const int bits : {1, 2, 4, 8}) {
        for (const auto weights : {weighting::subspace, weighting::key}) {
          if (dim > 40 && (bits == 2 || (bits == 8) == (weights == weighting::key))) continue;
          CAPTURE(m);
          CAPTURE(bits);
          check_bits({.subspace = m, .bits = bits, .weights = weights}, keys, dim, balance.data());
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("every element and page size, with and without centre, balance and norms", E, float, kvx::half, kvx::bf16) {
  for (const int tokens : {1, 2, 4, 16, 64, 128, 256}) {
    CAPTURE(tokens);
    for (const int dim : {64, 80, 96, 128, 192, 256, 576}) {
      CAPTURE(dim);
      const auto keys = random_keys<E>(tokens, dim, static_cast<unsigned>(tokens + dim));
      const auto balance = random_balance(dim, 6);
      const bool full = (tokens + dim / 16) % 2 == 0;
      check_bits({.centre = full, .norms = full}, keys, dim, full ? balance.data() : nullptr);
      if (tokens > 64) break;
    }
  }
}

TEST_CASE("keys that are not finite are never found and change nobody else's code") {
  constexpr int dim = 80;
  constexpr int tokens = 16;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, 3e38f}) {
    CAPTURE(bad);
    for (const auto weights : {weighting::subspace, weighting::key}) {
      const key_sketch s{.weights = weights};
      auto keys = random_keys<float>(tokens, dim, 7);
      keys[3 * dim + 79] = bad;
      keys[11 * dim] = bad;
      keys[11 * dim + 1] = -bad;
      check_bits(s, keys, dim, nullptr);
      if (std::isfinite(bad)) continue;

      std::vector<float> others;
      for (int t = 0; t < tokens; ++t) {
        if (t != 3 && t != 11) others.insert(others.end(), keys.begin() + t * dim, keys.begin() + (t + 1) * dim);
      }
      const auto page = encode(s, keys, dim, nullptr, kvx::simd_level().used);
      const auto without = encode(s, others, dim, nullptr, kvx::simd_level().used);
      CHECK(page.means == without.means);
      for (int t = 0, other = 0; t < tokens; ++t) {
        const auto i = static_cast<std::size_t>(t);
        if (t == 3 || t == 11) {
          CHECK(page.norms[i] == kvx::never_found);
          for (const double v : kvx::test::decoded_key(s, page, dim, tokens, t)) CHECK(std::isnan(v));
        } else {
          CHECK(page.norms[i] == without.norms[static_cast<std::size_t>(other)]);
          CHECK(kvx::test::decoded_key(s, page, dim, tokens, t) == kvx::test::decoded_key(s, without, dim, tokens - 2, other));
          ++other;
        }
      }
    }
  }
}

TEST_CASE("a page without a finite key has mean 0 and no key to find") {
  const std::vector<float> keys(4 * 24, std::numeric_limits<float>::quiet_NaN());
  const auto page = encode({}, keys, 24, nullptr, kvx::simd_level().used);
  CHECK(page.means == std::vector<kvx::bf16>(24));
  CHECK(page.norms == std::vector<std::uint8_t>(4, kvx::never_found));
  check_bits({}, keys, 24, nullptr);
}

TEST_CASE("keys of zeros, pages of equal keys, keys of one constant channel, tiny and huge keys") {
  constexpr int dim = 64;
  constexpr int tokens = 16;
  for (const bool centre : {false, true}) {
    const key_sketch s{.centre = centre};
    std::vector<float> keys(tokens * dim);
    check_bits(s, keys, dim, nullptr);
    const auto zeros = encode(s, keys, dim, nullptr, kvx::simd_level().used);
    CHECK(zeros.norms == std::vector<std::uint8_t>(tokens, 1));
    CHECK(zeros.weights == std::vector<kvx::half>(tokens * 8));  // 0: the estimate is that of the page's mean

    for (int i = 0; i < tokens * dim; ++i) keys[static_cast<std::size_t>(i)] = i % dim == 5 ? 700.0f : 1;  // exact in bf16
    check_bits(s, keys, dim, nullptr);
    if (centre) CHECK(encode(s, keys, dim, nullptr, kvx::simd_level().used).norms == std::vector<std::uint8_t>(tokens, 1));

    for (const float size : {1e-38f, 1e-20f, 1e-6f, 1e4f, 1e6f, 1e15f, 1e19f, 1e30f}) {
      CAPTURE(size);
      check_bits(s, random_keys<float>(tokens, dim, 9, 0, size), dim, nullptr);
    }
  }
}

TEST_CASE("weights that half cannot hold are its largest number") {
  constexpr int dim = 16;
  std::vector<float> keys(dim);
  for (std::size_t d = 0; d < dim; ++d) keys[d] = d % 2 == 0 ? 1e5f : -9e5f;
  const auto page = encode({.centre = false}, keys, dim, nullptr, kvx::simd_level().used);
  for (const kvx::half w : page.weights) CHECK(kvx::to_float(w) == 65504);
  CHECK(page.norms[0] == 255);
}

TEST_CASE("what an encoder refuses") {
  CHECK_THROWS_AS(kvx::make_key_encoder<float>({.subspace = 5}, 64), kvx::usage_error);
  CHECK_THROWS_AS(kvx::make_key_encoder<float>({.bits = 3}, 64), kvx::usage_error);
  CHECK_THROWS_AS(kvx::make_key_encoder<float>({}, 0), kvx::usage_error);
  CHECK_THROWS_AS(kvx::make_key_encoder<float>({}, 577), kvx::usage_error);
  CHECK_THROWS_AS((kvx::make_key_encoder<float, 8>({.bits = 4}, 64)), kvx::usage_error);
}
