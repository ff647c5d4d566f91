// Pools of many gigabytes, touched only where rows are written: nothing is counted or addressed in 32 bits.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::feed, test::one_thread, test::tokens;

/// Attention of two tokens equals that of a small cache with the same rows.
template <class Large, class Small>
void check_same(Large& large, sequence a, Small& small, sequence b, const attend_options& how = {}) {
  const host exec = one_thread();
  step s = large.begin(exec, {{a, 2}}), t = small.begin(exec, {{b, 2}});
  append_all(large, exec, s, tokens(77, 2));
  append_all(small, exec, t, tokens(77, 2));
  CHECK(test::attend_all(large, exec, s, tokens(77, 2), how) == test::attend_all(small, exec, t, tokens(77, 2), how));
}

template <class Cache>
std::int64_t offset(const Cache& c, int layer, std::int32_t page) {
  return (reinterpret_cast<const std::byte*>(c.view(layer).key.at(page, 0, 0)) -
          reinterpret_cast<const std::byte*>(c.view(layer).key.data));
}

}  // namespace

TEST_CASE("the last pages of a paged pool of 17 GB") {
  using layout = paged<half, page_shape{.tokens = 1, .key_dim = 576, .value_dim = 512}>;
  const host exec = one_thread();
  constexpr std::int64_t all = std::int64_t{1} << 20;  // x 4 heads x 1088 x 2 bytes x 2 layers
  geometry g{.layers = 2, .kv_heads = 4, .query_heads = 4, .max_tokens = all, .max_sequences = 2};
  cache<host, spec<layout>> c(exec, {}, g);
  CHECK(decltype(c)::bytes(g).rows > std::int64_t{17} << 30);
  // An open step holds all pages but the last few; no row of it is written.
  const step others = c.begin(exec, {{c.open(exec), all - 78}});
  const sequence s = c.open(exec);
  g.max_tokens = 256;
  cache<host, spec<layout>> small(exec, {}, g);
  const sequence t = small.open(exec);
  feed(c, exec, s, tokens(1, 78));
  feed(small, exec, t, tokens(1, 78));
  CHECK(c.pages(0, s).back() == all - 1);
  CHECK(offset(c, 0, c.pages(0, s).back()) > std::int64_t{1} << 33);
  CHECK(test::snapshot(c, s) == test::snapshot(small, t));
  check_same(c, s, small, t);
  CHECK_THROWS_AS(c.begin(exec, {{s, 3}}), capacity_error);
}

TEST_CASE("the last slab of a contiguous pool with 18 GB of rows, whose largest column has 3") {
  using layout = contiguous<bf16, page_shape{.tokens = 64, .key_dim = 128, .value_dim = 8}, zones{.sink = 4, .local = 64}>;
  using retrieving = spec<layout, sign_buckets<key_sketch{.balance = 0}>, rsq_ip<4>>;
  const host exec = one_thread();
  geometry g{.layers = 1,
             .kv_heads = 2,
             .query_heads = 4,
             .max_tokens = std::int64_t{1} << 25,
             .max_sequences = 16,
             .kinds = {layer_kind::retrieve()}};
  cache<host, retrieving> c(exec, {}, g);
  CHECK(decltype(c)::bytes(g).rows >= std::int64_t{16} << 30);
  sequence last{};
  for (int i = 0; i < 16; ++i) {
    last = c.open(exec);
    feed(c, exec, last, tokens(1000 + static_cast<test::token>(i), 1));
  }
  feed(c, exec, last, tokens(1, 400));
  const std::int32_t page = c.pages(0, last).back();
  CHECK(offset(c, 0, page) > std::int64_t{1} << 31);
  const column_array magnitudes = c.column(0, column_magnitudes);
  CHECK(magnitudes.at(page, 1) - magnitudes.data > std::int64_t{1} << 31);
  g.max_tokens = 512;
  g.max_sequences = 1;
  cache<host, retrieving> small(exec, {}, g);
  const sequence t = small.open(exec);
  feed(small, exec, t, tokens(1015, 1));
  feed(small, exec, t, tokens(1, 400));
  CHECK(test::snapshot(c, last) == test::snapshot(small, t));
  check_same(c, last, small, t);
  check_same(c, last, small, t, {.keep = 24, .path = attend_options::route::retrieve});
}

TEST_CASE("a fork of a long sequence copies nothing") {
  using layout = paged<bf16, page_shape{.tokens = 64, .key_dim = 128, .value_dim = 128}>;
  const host exec = one_thread();
  constexpr std::int64_t n = 131072 + 5;
  const geometry g{.layers = 1, .kv_heads = 1, .query_heads = 8, .max_tokens = 4 * n, .max_sequences = 4};
  cache<host, spec<layout>> c(exec, {}, g);
  const sequence s = c.open(exec);
  step prompt = c.begin(exec, {{s, n}});
  // One row seen n times: strides of 0.
  const std::vector<bf16> row(128);
  tensor_view<const bf16, 3> rows(row.data(), n, 1, 128);
  rows.strides[0] = 0;
  c.append(exec, prompt, 0, rows, rows);
  c.commit(exec, prompt);
  for (int i = 0; i < 3; ++i) c.fork(exec, s);
  CHECK(c.stats().rows_copied == 0);
  CHECK(c.stats().pages_used == ceil_div(n, 64));
  CHECK(c.stats().tokens == 4 * n);
}
