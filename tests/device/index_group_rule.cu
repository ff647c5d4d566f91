// The scores of a group on the device equal their definition to the last bit.

#include <kvx/index/cuda/group_rule.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/device_array.cuh"
#include "support/group_scores.hpp"

using namespace kvx;
using kvx::test::device_array;

namespace {

constexpr auto mean = group_rule::kind::mean;
constexpr auto max = group_rule::kind::max;
constexpr auto softmax_sum = group_rule::kind::softmax_sum;

/// Logits of several units, each with tokens of its own; behind the last of a row lies a large logit.
struct unit_logits {
  std::int64_t heads;
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<float>> data;  // (units) of (G, C)

  unit_logits(std::int64_t group, std::vector<std::int32_t> counts, float spread, unsigned seed) : heads(group), tokens(std::move(counts)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    for (const std::int32_t n : tokens) {
      std::vector<float>& l = data.emplace_back();
      for (std::int64_t i = 0; i < group * n; ++i) l.push_back(normal(random) + static_cast<float>(n == 0 ? 0 : i / n));
    }
  }
};

bool same_bits(const std::vector<float>& a, const float* b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (is_nan(a[i]) != is_nan(b[i]) || (!is_nan(a[i]) && std::memcmp(&a[i], &b[i], sizeof(float)) != 0)) return false;
  }
  return true;
}

template <int Threads = group_threads>
void check(const unit_logits& l, const std::vector<float>& resident) {
  const auto units = static_cast<std::int64_t>(l.tokens.size());
  const std::int64_t C = *std::max_element(l.tokens.begin(), l.tokens.end()) + 5;
  std::vector<float> logits(static_cast<std::size_t>(units * l.heads * C), 1e6f), residents;
  for (std::int64_t u = 0; u < units; ++u) {
    const auto& from = l.data[static_cast<std::size_t>(u)];
    const std::int64_t n = l.tokens[static_cast<std::size_t>(u)];
    for (std::int64_t g = 0; g < l.heads; ++g) std::copy_n(from.begin() + g * n, n, logits.begin() + (u * l.heads + g) * C);
    residents.insert(residents.end(), resident.begin(), resident.end());
  }
  const device_array<float> on_device(logits), lse(residents);
  const device_array<std::int32_t> counts(l.tokens);
  for (const auto rule : {mean, max, softmax_sum}) {
    CAPTURE(static_cast<int>(rule));
    const device_array<float> scores(static_cast<std::size_t>(units * C));
    const test::test_stream stream;
    const device exec{.stream = stream.get()};
    const tensor_view<const float, 3> view(on_device.data(), units, l.heads, C);
    const tensor_view<float, 2> out(scores.data(), units, C);
    const float* const r = resident.empty() ? nullptr : lse.data();
    if constexpr (Threads == group_threads) {
      group_scores(exec, {rule}, view, counts.data(), r, out);
    } else {
      launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = Threads}, group_scores_kernel<Threads>, group_rule{rule}, view,
             counts.data(), r, out);
    }
    stream.wait();
    const auto result = scores.read();
    for (std::int64_t u = 0; u < units; ++u) {
      const std::int64_t n = l.tokens[static_cast<std::size_t>(u)];
      CAPTURE(n);
      CHECK(same_bits(test::group_scores_slowly(rule, l.data[static_cast<std::size_t>(u)], l.heads, n, resident), result.data() + u * C));
      CHECK(is_nan(result[static_cast<std::size_t>(u * C + n)]));  // nothing is written behind the last token
    }
  }
}

}  // namespace

TEST_CASE("groups 1 to 16, 64 and 128, logits of every spread, any number of tokens") {
  for (int group = 1; group <= 16; ++group) check<64>(unit_logits(group, {70, 3}, 4, 1), {});
  check<64>(unit_logits(64, {130}, 4, 1), {});
  check<64>(unit_logits(128, {20}, 4, 1), {});
  check(unit_logits(3, {0, 1, 2, 31, 32, 33, 511, 512, 513, 1300}, 2, 2), {5, -1, 40});
  for (const float spread : {0.0f, 1e-6f, 1.0f, 30.0f, 1e4f, 1e30f}) {
    CAPTURE(spread);
    check<128>(unit_logits(4, {300}, spread, 3), {0, spread, -spread, 1e3f});
  }
}

TEST_CASE("NaN and infinite logits and residents; no residents at all") {
  unit_logits l(4, {100, 7, 40}, 2, 5);
  for (auto& unit : l.data) {
    unit[1] = quiet_nan;
    unit[2] = -infinity;
    unit[5] = 0.0f;
    unit[6] = -0.0f;
  }
  for (std::size_t t = 0; t < 40; ++t) l.data[2][t] = quiet_nan;
  for (std::size_t t = 40; t < 80; ++t) l.data[2][t] = -infinity;
  l.data[0][150] = infinity;
  for (const float r : {1.0f, -infinity, infinity, quiet_nan, -0.0f}) {
    CAPTURE(r);
    check<64>(l, {r, r, r, 3});
  }
  check<64>(l, {});
}

TEST_CASE("misuse is refused") {
  const device_array<float> x(8 * 129);
  const device exec;
  const auto view = [&](std::int64_t units, std::int64_t heads, std::int64_t tokens) {
    return tensor_view<const float, 3>(x.data(), units, heads, tokens);
  };
  CHECK_THROWS_AS(group_scores(exec, {}, view(1, 129, 8), nullptr, nullptr, tensor_view<float, 2>(x.data(), 1, 8)), usage_error);
  CHECK_THROWS_AS(group_scores(exec, {}, view(2, 2, 8), nullptr, nullptr, tensor_view<float, 2>(x.data(), 1, 8)), usage_error);
  CHECK_THROWS_AS(group_scores(exec, {}, view(2, 2, 8), nullptr, nullptr, tensor_view<float, 2>(x.data(), 2, 7)), usage_error);
}
