// Merging partial softmaxes equals one softmax over all rows, whatever the split.

#include <kvx/attend/softmax_state.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace {

/// The definition, with the whole row in view: state and undivided output of scores [first, last).
kvx::softmax_state reference(const std::vector<float>& score, const std::vector<float>& value, std::size_t first, std::size_t last,
                             float& out) {
  kvx::softmax_state s;
  out = 0;
  for (std::size_t t = first; t < last; ++t) s.max = std::max(s.max, score[t]);
  for (std::size_t t = first; t < last; ++t) {
    s.sum += std::exp(score[t] - s.max);
    out += std::exp(score[t] - s.max) * value[t];
  }
  return s;
}

}  // namespace

TEST_CASE("every split of a row gives the whole row's softmax") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 20);  // wide: most terms underflow against the largest
  std::vector<float> score(23), value(23);
  for (float& x : score) x = normal(random);
  for (float& x : value) x = normal(random);

  float whole = 0;
  const auto expected = reference(score, value, 0, 23, whole);
  for (std::size_t cut = 0; cut <= 23; ++cut) {  // 0 and 23: an empty side
    CAPTURE(cut);
    float left = 0, right = 0;
    auto state = reference(score, value, 0, cut, left);
    const auto weight = kvx::merge(state, reference(score, value, cut, 23, right));
    CHECK(state.lse() == doctest::Approx(expected.lse()));
    CHECK(weight(left, right) / state.sum == doctest::Approx(whole / expected.sum));
  }
}

TEST_CASE("no rows: lse is -inf, and merging nothing into nothing stays nothing") {
  kvx::softmax_state none;
  kvx::merge(none, {});
  CHECK(none == kvx::softmax_state{});
  CHECK(none.lse() == -std::numeric_limits<float>::infinity());
}

TEST_CASE("the output of an empty side is never read") {
  const float poison = std::numeric_limits<float>::quiet_NaN();
  kvx::softmax_state some{.max = 2, .sum = 3}, none;
  CHECK(kvx::merge(some, {})(5, poison) == 5);
  CHECK(kvx::merge(none, some)(poison, 5) == 5);
}
