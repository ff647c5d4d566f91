// One cache, many executions: more threads than `begin` was given, no parallel_for at all; and calls that come at the wrong moment.

#include <kvx/kvx.hpp>

#include <support/thread_pool.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

constexpr int heads = 4, query_heads = 8, dim = 16;
constexpr kvx::page_shape shape{.tokens = 16, .key_dim = dim, .value_dim = dim};
const kvx::geometry geometry{.layers = 1, .kv_heads = heads, .query_heads = query_heads, .max_tokens = 512, .max_sequences = 2};

std::vector<float> ramp(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 17) / 8 - 1;
  return x;
}

/// Attention of 40 tokens: `begin` by one execution, `attend` by another.
std::vector<float> attend_by(const kvx::host& first, const kvx::host& second) {
  constexpr std::size_t tokens = 40;
  kvx::cache cache{first, kvx::spec<kvx::paged<float, shape>>{}, geometry};
  const auto k = ramp(tokens * heads * dim), q = ramp(tokens * query_heads * dim);
  std::vector<float> out(q.size());
  const kvx::sequence text = cache.open(first);
  kvx::step step = cache.begin(first, {{text, static_cast<std::int64_t>(tokens)}});
  cache.append(second, step, 0, k.data(), k.data());
  cache.attend(second, step, 0, q.data(), out.data());
  cache.commit(second, step);
  return out;
}

}  // namespace

TEST_CASE("attend may be given more threads than begin was, and the result is the same") {
  kvx::host one{.threads = 1, .parallel = kvx::test::std_threads()}, many{.threads = 8, .parallel = kvx::test::std_threads()};
  const auto expected = attend_by(one, one);
  CHECK(attend_by(one, many) == expected);
  CHECK(attend_by(many, one) == expected);
}

TEST_CASE("without a parallel_for everything runs on the caller's thread") {
  const kvx::host none{.threads = 4, .parallel = {}};
  CHECK(attend_by(none, none) == attend_by(kvx::host{.threads = 1}, kvx::host{.threads = 1}));
}

TEST_CASE("accepted counts are one for each entry, none is no way to say all") {
  const kvx::host exec{.threads = 1};
  kvx::cache cache{exec, kvx::spec<kvx::paged<float, shape>>{}, geometry};
  const auto k = ramp(3 * heads * dim);
  const kvx::sequence text = cache.open(exec);
  kvx::step step = cache.begin(exec, {{text, 3}});
  cache.append(exec, step, 0, k.data(), k.data());
  CHECK_THROWS_AS(cache.commit(exec, step, std::vector<std::int64_t>()), kvx::usage_error);
  CHECK(cache.length(text) == 0);
  cache.commit(exec, step, std::vector<std::int64_t>{2});
  CHECK(cache.length(text) == 2);
}

TEST_CASE("external rows are bound between steps, and pages that are seen must exist") {
  const kvx::host exec{.threads = 1};
  kvx::cache cache{exec, kvx::spec<kvx::external<float, shape>>{}, geometry};
  std::vector<float> rows(2 * heads * 16 * 2 * dim);
  kvx::row_view<const float> view;
  view.key = {rows.data(), heads * 16 * 2 * dim, 16 * 2 * dim, 2 * dim};
  view.value = {rows.data() + dim, heads * 16 * 2 * dim, 16 * 2 * dim, 2 * dim};
  view.heads = heads;
  view.page_tokens = 16;
  view.key_dim = view.value_dim = dim;
  cache.bind(0, view);
  const kvx::sequence text = cache.open(exec);
  const std::vector<std::int32_t> good = {1, 0}, bad = {0, -1};
  CHECK_THROWS_AS(static_cast<void>(cache.begin(exec, {{text, 20, bad}})), kvx::usage_error);
  {
    const kvx::step step = cache.begin(exec, {{text, 20, good}});
    CHECK_THROWS_AS(cache.bind(0, view), kvx::usage_error);
  }
  cache.bind(0, view);
}
