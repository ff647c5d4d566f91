// The scores of a group equal their definition to the last bit, under every instruction set; softmax sums are softmax sums.

#include "../support/dense_case.hpp"
#include "../support/thread_pool.hpp"

#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/host/group_rule.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr auto mean = group_rule::kind::mean;
constexpr auto max = group_rule::kind::max;
constexpr auto softmax_sum = group_rule::kind::softmax_sum;

struct logits {
  std::int64_t heads, tokens;
  std::vector<float> data;  // (G, C)

  logits(std::int64_t group, std::int64_t count, float spread, unsigned seed) : heads(group), tokens(count) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    for (std::int64_t i = 0; i < group * count; ++i) data.push_back(normal(random) + static_cast<float>(i / count));
  }
  float& at(std::int64_t g, std::int64_t t) { return data[static_cast<std::size_t>(g * tokens + t)]; }
  float at(std::int64_t g, std::int64_t t) const { return data[static_cast<std::size_t>(g * tokens + t)]; }
  tensor_view<const float, 2> view() const { return tensor_view<const float, 2>(data.data(), heads, tokens); }
};

/// The definition, with the exponential and the fixed point of core: the specification of group_scores.
std::vector<float> reference(group_rule::kind rule, const logits& l, const std::vector<float>& resident) {
  std::vector<float> largest, share, scores;
  for (std::int64_t g = 0; g < l.heads; ++g) {
    const float r = resident.empty() ? -infinity : resident[static_cast<std::size_t>(g)];
    float m = is_nan(r) ? -infinity : r;
    for (std::int64_t t = 0; t < l.tokens; ++t) m = l.at(g, t) > m ? l.at(g, t) : m;
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < l.tokens; ++t) {
      const float e = quick_exp(l.at(g, t) - (m == -infinity ? 0 : m));
      if (!is_nan(e)) sum += fixed_point(e);
    }
    largest.push_back(m);
    share.push_back(softmax_share(m, sum, r));
  }
  for (std::int64_t t = 0; t < l.tokens; ++t) {
    double sum = 0;
    float weighted = 0, most = -infinity;
    for (std::int64_t g = 0; g < l.heads; ++g) {
      const auto i = static_cast<std::size_t>(g);
      const float x = l.at(g, t);
      if (rule == softmax_sum) {
        weighted += rounded_product(quick_exp(x - (largest[i] == -infinity ? 0 : largest[i])), share[i]);
      } else {
        sum += static_cast<double>(x);
      }
      most = is_nan(x) || is_nan(most) ? quiet_nan : x > most ? x : most;
    }
    scores.push_back(rule == softmax_sum ? weighted : rule == mean ? static_cast<float>(sum / static_cast<double>(l.heads)) : most);
  }
  return scores;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (is_nan(a[i]) != is_nan(b[i]) || (!is_nan(a[i]) && std::memcmp(&a[i], &b[i], sizeof(float)) != 0)) return false;
  }
  return true;
}

std::vector<float> scores_of(group_rule::kind rule, const logits& l, const std::vector<float>& resident,
                             const host& exec = {.threads = 1}) {
  std::vector<float> scores(static_cast<std::size_t>(l.tokens), 12345);
  std::vector<std::byte> scratch(static_cast<std::size_t>(group_scores_scratch(exec, {rule}, l.heads, l.tokens)), std::byte{0xff});
  group_scores(exec, {rule}, l.view(), resident, scores, scratch);
  return scores;
}

std::vector<float> sums_of(const logits& l, const std::vector<float>& resident, instruction_set set) {
  const host exec{.threads = 1};
  std::vector<float> scores(static_cast<std::size_t>(l.tokens), 12345);
  std::vector<std::byte> scratch(static_cast<std::size_t>(group_scores_scratch(exec, {softmax_sum}, l.heads, l.tokens)), std::byte{0xff});
  host_group::softmax_sums(simd::rerank_kernels_of(set), exec, l.view(), resident, scores, scratch);
  return scores;
}

void check(const logits& l, const std::vector<float>& resident) {
  for (const auto rule : {mean, max, softmax_sum}) CHECK(same_bits(scores_of(rule, l, resident), reference(rule, l, resident)));
  for (const instruction_set set : instruction_sets()) {
    CAPTURE(name_of(set));
    CHECK(same_bits(sums_of(l, resident, set), reference(softmax_sum, l, resident)));
  }
}

}  // namespace

TEST_CASE("groups 1 to 16 and 64, any number of tokens, logits of every spread") {
  for (int group = 1; group <= 17; ++group) check(logits(group == 17 ? 64 : group, 100, 4, 1), {});
  for (const std::int64_t tokens : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 4095, 4096, 4097, 9001}) {
    CAPTURE(tokens);
    check(logits(3, tokens, 2, 2), {5, -1, 40});
  }
  for (const float spread : {0.0f, 1e-6f, 1.0f, 30.0f, 1e4f, 1e30f}) {
    CAPTURE(spread);
    check(logits(4, 500, spread, 3), {0, spread, -spread, 1e3f});
  }
}

TEST_CASE("softmax sums: against exponentials in double") {
  const logits l(4, 300, 3, 4);
  const std::vector<float> resident = {2, 9, -infinity, 30};
  const auto scores = scores_of(softmax_sum, l, resident);
  std::vector<double> expected(300);
  for (std::int64_t g = 0; g < 4; ++g) {
    double all = std::exp(static_cast<double>(resident[static_cast<std::size_t>(g)]));
    for (std::int64_t t = 0; t < 300; ++t) all += std::exp(static_cast<double>(l.at(g, t)));
    for (std::int64_t t = 0; t < 300; ++t) expected[static_cast<std::size_t>(t)] += std::exp(static_cast<double>(l.at(g, t))) / all;
  }
  double worst = 0;
  for (std::size_t t = 0; t < expected.size(); ++t) worst = std::max(worst, std::abs(static_cast<double>(scores[t]) / expected[t] - 1));
  CHECK(worst < 2e-6);  // the rounding of logit - max, relative to the largest logits
}

TEST_CASE("the mean of the logits ranks as the mean query does; the maximum is one of them") {
  logits l(5, 50, 1, 5);
  const auto scores = scores_of(mean, l, {});
  for (std::int64_t t = 0; t < 50; ++t) {
    const float sum = l.at(0, t) + l.at(1, t) + l.at(2, t) + l.at(3, t) + l.at(4, t);
    CHECK(scores[static_cast<std::size_t>(t)] == doctest::Approx(sum / 5));
  }
  l.at(3, 7) = 1000;
  CHECK(scores_of(max, l, {})[7] == 1000);
}

TEST_CASE("NaN and infinite logits and residents touch their own token or head alone") {
  logits l(3, 60, 2, 6);
  const std::vector<float> resident = {1, 2, 3};
  const auto before = scores_of(softmax_sum, l, resident);
  l.at(0, 5) = quiet_nan;
  l.at(1, 6) = quiet_nan;
  check(l, resident);
  auto after = scores_of(softmax_sum, l, resident);
  CHECK(is_nan(after[5]));
  CHECK(is_nan(after[6]));
  for (std::size_t t = 7; t < 60; ++t) CHECK(after[t] == doctest::Approx(before[t]).epsilon(.2));
  l.at(2, 9) = infinity;
  l.at(0, 10) = -infinity;
  check(l, resident);
  after = scores_of(softmax_sum, l, resident);
  CHECK(is_nan(after[9]));
  CHECK(!is_nan(after[10]));
  for (const float r : {quiet_nan, infinity, -infinity}) check(l, {r, 0, r});
  const auto none = scores_of(softmax_sum, l, {-infinity, 0, -infinity});
  CHECK(same_bits(scores_of(softmax_sum, l, {quiet_nan, 0, quiet_nan}), none));  // a NaN resident counts as none
  CHECK(none[0] > 0);
  for (std::int64_t t = 0; t < 60; ++t) l.at(1, t) = -infinity;
  check(l, {});
  check(l, {-infinity, -infinity, quiet_nan});
  for (float& x : l.data) x = quiet_nan;
  check(l, resident);
}

TEST_CASE("any number of threads gives the same bits") {
  const logits l(3, 30'000, 3, 7);
  for (const auto rule : {mean, max, softmax_sum}) {
    const auto one = scores_of(rule, l, {1, 2, 3});
    for (const int threads : {2, 5}) CHECK(scores_of(rule, l, {1, 2, 3}, {.threads = threads, .parallel = std_threads()}) == one);
  }
}

TEST_CASE("misuse is refused") {
  const logits l(2, 4, 1, 8);
  std::vector<float> scores(4);
  std::vector<std::byte> scratch(static_cast<std::size_t>(group_scores_scratch(host{}, {}, 2, 4)));
  const std::vector<float> resident(3);
  CHECK_THROWS_AS(group_scores(host{}, {}, l.view(), {}, std::span(scores).first(3), scratch), usage_error);
  CHECK_THROWS_AS(group_scores(host{}, {}, l.view(), resident, scores, scratch), usage_error);
  CHECK_THROWS_AS(group_scores(host{}, {}, l.view(), {}, scores, std::span(scratch).first(scratch.size() - 1)), usage_error);
  CHECK_NOTHROW(group_scores(host{}, {}, l.view(), {}, scores, scratch));
}
