// Selection of the k largest equals a full sort with the stated tie rule, whatever the scores.

#include <kvx/core/math.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

using namespace kvx;

namespace {

/// The definition: a stable sort by descending score without NaN, cut, and put in order of position.
std::vector<std::int32_t> sorted(std::span<const float> scores, std::int64_t k) {
  std::vector<std::int32_t> positions;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    if (!std::isnan(scores[t])) positions.push_back(static_cast<std::int32_t>(t));
  }
  std::stable_sort(positions.begin(), positions.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  positions.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(positions.size()))));
  std::sort(positions.begin(), positions.end());
  return positions;
}

void check(std::span<const float> scores, std::int64_t k) {
  CAPTURE(scores.size());
  CAPTURE(k);
  const auto expected = sorted(scores, k);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(std::min<std::int64_t>(k, static_cast<std::int64_t>(scores.size()))), -1);
  const top_k_result result = top_k(host{}, scores, k, std::span(positions));
  const auto nans = std::count_if(scores.begin(), scores.end(), [](float x) { return std::isnan(x); });
  CHECK(result == top_k_result{static_cast<std::int64_t>(expected.size()), nans});
  positions.resize(expected.size());
  CHECK(positions == expected);
}

void check_every_k(const std::vector<float>& scores) {
  for (std::int64_t k = 0; k <= static_cast<std::int64_t>(scores.size()) + 2; ++k) check(scores, k);
}

std::vector<float> normal_scores(std::size_t n, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> scores(n);
  for (float& x : scores) x = normal(random);
  return scores;
}

}  // namespace

TEST_CASE("every k of random scores") {
  check_every_k({});
  check_every_k({3});
  check_every_k(normal_scores(97, 1, 1));
  check_every_k(normal_scores(64, 1e30f, 2));
}

TEST_CASE("ties go to the lowest position: equal scores, zeros of both signs, few different values") {
  check_every_k(std::vector<float>(50, 1.5f));
  std::vector<float> zeros(40);
  for (std::size_t t = 0; t < zeros.size(); ++t) zeros[t] = t % 3 == 0 ? -0.0f : 0.0f;
  check_every_k(zeros);
  std::mt19937 random(3);
  std::vector<float> few(200);
  for (float& x : few) x = static_cast<float>(static_cast<int>(random() % 5) - 2);
  check_every_k(few);
}

TEST_CASE("NaN is never taken and is counted; infinities have their place") {
  std::vector<float> scores = normal_scores(60, 1, 4);
  scores[0] = scores[7] = quiet_nan;
  scores[8] = -quiet_nan;
  scores[9] = scores[30] = infinity;
  scores[10] = scores[31] = -infinity;
  check_every_k(scores);
  check_every_k(std::vector<float>(20, quiet_nan));
  check_every_k(std::vector<float>(20, -infinity));
}

TEST_CASE("scores that differ in one bit, at every bit") {
  for (int bit = 0; bit < 31; ++bit) {
    std::vector<float> scores;
    for (std::uint32_t i = 0; i < 24; ++i) {
      const std::uint32_t bits = (0x2a55aa55u ^ (i % 2) << bit) | (i % 3 == 0 ? 0x80000000u : 0);
      float x = 0;
      std::memcpy(&x, &bits, sizeof x);
      scores.push_back(x);
    }
    check_every_k(scores);
  }
}

TEST_CASE("many scores: probabilities over decades, ascending, descending, near the largest float") {
  std::vector<float> scores = normal_scores(100'000, 4, 5);
  for (float& x : scores) x = std::exp(x - 12);
  for (const std::int64_t k : {1, 2, 511, 512, 5'000, 50'000, 99'999, 100'000}) check(scores, k);
  std::sort(scores.begin(), scores.end());
  for (const std::int64_t k : {1, 512, 99'999}) check(scores, k);
  std::reverse(scores.begin(), scores.end());
  for (const std::int64_t k : {1, 512, 99'999}) check(scores, k);
  for (float& x : scores) x = std::min(largest_float, x * 1e38f);
  for (const std::int64_t k : {1, 512, 99'999}) check(scores, k);
}

TEST_CASE("many scores in one bin: too many to be kept aside, just few enough, one more") {
  std::mt19937 random(6);
  std::uniform_real_distribution<float> close(1, 1.2f), low(0, .5f);
  for (const std::size_t n : {2047u, 2048u, 2049u, 50'000u}) {
    std::vector<float> scores;
    for (std::size_t t = 0; t < n; ++t) scores.push_back(close(random));
    for (std::size_t t = 0; t < 3'000; ++t) scores.push_back(t % 100 == 0 ? 2 + low(random) : low(random));
    std::shuffle(scores.begin(), scores.end(), random);
    for (const std::int64_t k : {1, 29, 30, 31, 600, 2'000, 2'077, 2'078, 2'079, 2'080}) check(scores, k);
    for (float& x : scores) x = std::round(x * 64) / 64;  // and many ties among them
    for (const std::int64_t k : {1, 30, 31, 600, 2'000, 2'078, 2'079}) check(scores, k);
  }
}

TEST_CASE("misuse is refused") {
  const std::vector<float> scores = {1, 2, 3};
  std::vector<std::int32_t> positions(2);
  CHECK_THROWS_AS(top_k(host{}, scores, -1, std::span(positions)), usage_error);
  CHECK_THROWS_AS(top_k(host{}, scores, 3, std::span(positions)), usage_error);
  CHECK_NOTHROW(top_k(host{}, scores, 2, std::span(positions)));
}

#if defined(__x86_64__)
TEST_CASE("scores around zero, on a processor that takes subnormal numbers for zeros") {
  constexpr unsigned flush = 0x8040;  // of results and of operands
  const unsigned before = __builtin_ia32_stmxcsr();
  for (const bool flushes : {false, true}) {
    CAPTURE(flushes);
    for (const float tiny : {0.0f, 1e-40f, -1e-40f, 1e-45f}) {
      CAPTURE(tiny);
      std::vector<float> scores(6000, 0.0f), seen;
      for (std::size_t i = 0; i < 50; ++i) scores[i * 120] = 1 / static_cast<float>(i + 1);
      for (std::size_t i = 1; i < 6000; i += 7) scores[i] = tiny;
      seen = scores;
      if (flushes) std::replace(seen.begin(), seen.end(), tiny, 0.0f);
      for (const std::int64_t k : {1, 49, 51, 256, 1000, 5990}) {
        const auto expected = sorted(seen, k);
        std::vector<std::int32_t> positions(static_cast<std::size_t>(k), -1);
        __builtin_ia32_ldmxcsr(flushes ? before | flush : before);
        const top_k_result result = top_k(host{}, std::span<const float>(scores), k, std::span(positions));
        __builtin_ia32_ldmxcsr(before);
        CHECK(result.taken == k);
        CHECK(positions == expected);
      }
    }
  }
}
#endif
