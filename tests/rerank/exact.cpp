// The exact reranker's logits are inner products with the rows; passing through changes nothing.

#include "../support/paged_rows.hpp"
#include "../support/thread_pool.hpp"

#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/pass_through.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

template <class E>
std::vector<float> logits_of(const head_view<E>& from, const std::vector<float>& q, std::int64_t group, std::span<const std::int32_t> ids,
                             float scale, const host& exec = {.threads = 1}) {
  const auto C = static_cast<std::int64_t>(ids.size());
  std::vector<float> logits(static_cast<std::size_t>(group * C), 12345);
  std::vector<std::byte> scratch(static_cast<std::size_t>(rerank_scratch(exec, exact{}, from.rows.key_dim, group)), std::byte{0xff});
  group_queries queries{tensor_view<const float, 2>(q.data(), group, from.rows.key_dim), {}, scale};
  rerank(exec, exact{}, {}, from, queries, ids, tensor_view<float, 2>(logits.data(), group, C), scratch);
  return logits;
}

template <class E>
void check(const paged_shape& s, std::int64_t group, float scale = 0) {
  paged_rows<E> rows(s);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<std::size_t>(group * s.key_dim));
  for (float& x : q) x = normal(random);
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 1; t < s.lengths[0]; t += 1 + t % 3) ids.push_back(t);
  const head_view<E> from{rows.view(), {}, rows.item(0, 1, 0).pages, s.heads - 1};
  const auto logits = logits_of(from, q, group, ids, scale);
  double worst = 0;
  for (std::int64_t g = 0; g < group; ++g) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const E* const k = rows.key(0, ids[i], s.heads - 1);
      double exact = 0;
      for (int d = 0; d < s.key_dim; ++d)
        exact += static_cast<double>(q[static_cast<std::size_t>(g * s.key_dim + d)]) * static_cast<double>(to_float(k[d]));
      exact *= scale != 0 ? static_cast<double>(scale) : 1 / std::sqrt(static_cast<double>(s.key_dim));
      worst = std::max(worst, std::abs(exact - static_cast<double>(logits[static_cast<std::size_t>(g) * ids.size() + i])));
    }
  }
  CHECK(worst < 1e-5);  // logits of some nats in float
}

}  // namespace

TEST_CASE("dims, groups, page sizes, elements") {
  for (const int d : {1, 7, 16, 46, 72, 80, 128, 192, 576}) {
    CAPTURE(d);
    check<bf16>({.heads = 2, .page_tokens = 16, .key_dim = d, .value_dim = 8, .lengths = {200}, .gap = d % 3}, 4);
    check<half>({.page_tokens = 1, .key_dim = d, .value_dim = 8, .lengths = {70}, .offset = 1}, 3, .3f);
    check<float>({.page_tokens = 64, .key_dim = d, .value_dim = 8, .lengths = {130}}, 1);
  }
  for (int group = 1; group <= 17; ++group)
    check<bf16>({.page_tokens = 32, .key_dim = 24, .value_dim = 8, .lengths = {1300}}, group == 17 ? 64 : group);
}

TEST_CASE("a key with NaN or infinity gives NaN for itself alone; threads change nothing") {
  paged_rows<bf16> rows({.page_tokens = 64, .key_dim = 64, .value_dim = 8, .lengths = {3000}});
  const std::vector<float> q(2 * 64, .5f);
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < 3000; t += 2) ids.push_back(t);
  const head_view<bf16> from{rows.view(), {}, rows.item(0, 1, 0).pages, 0};
  const auto clean = logits_of(from, q, 2, ids, 0);
  CHECK(logits_of(from, q, 2, ids, 0, {.threads = 3, .parallel = std_threads()}) == clean);
  for (const float bad : {quiet_nan, infinity, -infinity}) {
    rows.key(0, 10, 0)[3] = round_to<bf16>(bad);
    const auto spoiled = logits_of(from, q, 2, ids, 0);
    for (std::size_t i = 0; i < spoiled.size(); ++i) CHECK((i % ids.size() == 5 ? is_nan(spoiled[i]) : spoiled[i] == clean[i]));
  }
}

TEST_CASE("passing through: every candidate ties") {
  std::vector<float> logits(6, 5);
  rerank(host{}, pass_through{}, {}, head_view<bf16>{}, {}, {}, tensor_view<float, 2>(logits.data(), 2, 3), {});
  CHECK(logits == std::vector<float>(6, 0));
}
