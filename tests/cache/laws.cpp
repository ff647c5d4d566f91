// What histories must not show: the same tokens give the same bits, whatever the way that led there.

#include <support/feed.hpp>
#include <support/poison.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <tuple>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::counts, test::feed, test::one_thread, test::snapshot, test::token, test::tokens;

constexpr zones cut{.sink = 4, .local = 6};
template <element E, int P>
using paged_of = paged<E, page_shape{.tokens = P, .key_dim = 7, .value_dim = 4}, cut>;
template <element E, int P>
using slabs_of = contiguous<E, page_shape{.tokens = P, .key_dim = 7, .value_dim = 4}, cut>;

template <class Layout>
struct caches {
  using type = cache<host, spec<Layout, test::checksum_index>>;
  host exec = one_thread();
  geometry g{.layers = 4,
             .kv_heads = 2,
             .query_heads = 6,
             .max_tokens = 600,
             .max_sequences = 6,
             .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9, 2), layer_kind::window(20)},
             .rollback = 16};
  type a{exec, {}, g};
  type b{exec, {}, g};

  caches() {
    for (type* c : {&a, &b}) {
      for (int layer = 0; layer < g.layers; ++layer) test::poison_free(*c, layer, row_pages(layer), {});
    }
  }
  std::int64_t row_pages(int layer) const {
    const cache_plan p = plan<Layout>(g, test::checksum_index::columns(Layout::shape), call_site::here());
    return p.groups[static_cast<std::size_t>(p.group_of[static_cast<std::size_t>(layer)])].pages();
  }
};

/// One more token, attended to in every layer, and dropped again.
template <class Cache>
std::vector<float> probe(Cache& cache, const host& exec, sequence s) {
  const std::vector<token> ids = tokens(9000, 2);
  step step = cache.begin(exec, {{s, 2}});
  append_all(cache, exec, step, ids);
  return attend_all(cache, exec, step, ids);
}

using layouts = std::tuple<paged_of<float, 1>, paged_of<half, 4>, paged_of<bf16, 16>, paged_of<float, 64>, slabs_of<float, 4>,
                           slabs_of<half, 16>, slabs_of<bf16, 64>>;

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("append, truncate, append equals append", L, truncated) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{17}, std::int64_t{64}, std::int64_t{77}}) {
    for (const std::int64_t back : {std::int64_t{1}, std::int64_t{4}, std::int64_t{15}, std::int64_t{16}}) {
      if (back > n) continue;
      caches<L> x;
      const sequence s = x.a.open(x.exec), t = x.b.open(x.exec);
      feed(x.a, x.exec, s, tokens(1, n - back));
      feed(x.a, x.exec, s, tokens(5000, back));
      x.a.truncate(x.exec, s, n - back);
      feed(x.a, x.exec, s, tokens(static_cast<token>(n - back + 1), back + 3));
      feed(x.b, x.exec, t, tokens(1, n + 3));
      CAPTURE(n);
      CAPTURE(back);
      CHECK(snapshot(x.a, s) == snapshot(x.b, t));
      CHECK(probe(x.a, x.exec, s) == probe(x.b, x.exec, t));
    }
  }
}
TEST_CASE_TEMPLATE_APPLY(truncated, layouts);

TEST_CASE_TEMPLATE_DEFINE("a prompt gives the same bits in any pieces", L, pieces) {
  caches<L> x;
  const std::vector<token> ids = tokens(1, 97);
  const sequence whole = x.b.open(x.exec);
  feed(x.b, x.exec, whole, ids);
  for (const std::int64_t piece : {1, 3, 16, 50, 96}) {
    const sequence s = x.a.open(x.exec);
    for (std::int64_t at = 0; at < 97; at += piece) {
      feed(x.a, x.exec, s, std::span(ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(piece, 97 - at))));
    }
    CAPTURE(piece);
    CHECK(snapshot(x.a, s) == snapshot(x.b, whole));
    CHECK(counts(x.a.stats()) == counts(x.b.stats()));
    CHECK(probe(x.a, x.exec, s) == probe(x.b, x.exec, whole));
    x.a.close(x.exec, s);
  }
}
TEST_CASE_TEMPLATE_APPLY(pieces, layouts);

TEST_CASE_TEMPLATE_DEFINE("a fork equals a copy, and neither side sees what the other writes", L, forked) {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{50}, std::int64_t{64}, std::int64_t{66}}) {
    for (const std::int64_t kept : {n, n - std::min<std::int64_t>(n, 9)}) {
      caches<L> x;
      const sequence s = x.a.open(x.exec), plain = x.b.open(x.exec), copy = x.b.open(x.exec);
      feed(x.a, x.exec, s, tokens(1, n));
      const sequence fork = x.a.fork(x.exec, s, kept);
      feed(x.a, x.exec, fork, tokens(7000, 30));
      feed(x.a, x.exec, s, tokens(static_cast<token>(1 + n), 25));
      feed(x.a, x.exec, fork, tokens(7030, 2));

      feed(x.b, x.exec, plain, tokens(1, n + 25));
      std::vector<token> ids = tokens(1, kept);
      for (const token id : tokens(7000, 32)) ids.push_back(id);
      feed(x.b, x.exec, copy, ids);
      CAPTURE(n);
      CAPTURE(kept);
      CHECK(snapshot(x.a, s) == snapshot(x.b, plain));
      CHECK(snapshot(x.a, fork) == snapshot(x.b, copy));
      CHECK(probe(x.a, x.exec, fork) == probe(x.b, x.exec, copy));
      x.a.close(x.exec, s);  // the fork keeps what it shares
      CHECK(snapshot(x.a, fork) == snapshot(x.b, copy));
    }
  }
}
TEST_CASE_TEMPLATE_APPLY(forked, layouts);

TEST_CASE_TEMPLATE_DEFINE("committing a part equals appending that part", L, accepted) {
  for (const std::int64_t kept : {0, 1, 7, 12}) {
    caches<L> x;
    const sequence s = x.a.open(x.exec), t = x.b.open(x.exec), other = x.a.open(x.exec), other_b = x.b.open(x.exec);
    feed(x.a, x.exec, s, tokens(1, 58));
    feed(x.b, x.exec, t, tokens(1, 58));
    step step = x.a.begin(x.exec, {{other, 3}, {s, 12}});
    std::vector<token> ids = tokens(800, 3);
    for (const token id : tokens(59, 12)) ids.push_back(id);
    append_all(x.a, x.exec, step, ids);
    x.a.commit(x.exec, step, std::vector<std::int64_t>{2, kept});
    feed(x.b, x.exec, other_b, tokens(800, 2));
    feed(x.b, x.exec, t, tokens(59, kept));
    CAPTURE(kept);
    CHECK(snapshot(x.a, s) == snapshot(x.b, t));
    CHECK(snapshot(x.a, other) == snapshot(x.b, other_b));
    CHECK(counts(x.a.stats()) == counts(x.b.stats()));
  }
}
TEST_CASE_TEMPLATE_APPLY(accepted, layouts);

TEST_CASE_TEMPLATE_DEFINE("a dropped step was never there", L, dropped) {
  caches<L> x;
  const sequence s = x.a.open(x.exec);
  feed(x.a, x.exec, s, tokens(1, 61));
  const sequence f = x.a.fork(x.exec, s);
  const auto before = snapshot(x.a, s), fork_before = snapshot(x.a, f);
  const auto stats = counts(x.a.stats());
  {
    step step = x.a.begin(x.exec, {{s, 5}, {f, 9}});
    append_all(x.a, x.exec, step, tokens(400, 14));
  }
  CHECK(snapshot(x.a, s) == before);
  CHECK(snapshot(x.a, f) == fork_before);
  CHECK(counts(x.a.stats()) == stats);
}
TEST_CASE_TEMPLATE_APPLY(dropped, layouts);

TEST_CASE("forks of pages copy no row, and the first write behind one at most a page of each layer") {
  caches<paged_of<bf16, 16>> x;
  const sequence s = x.a.open(x.exec);
  feed(x.a, x.exec, s, tokens(1, 100));
  const std::int64_t used = x.a.stats().pages_used;
  const sequence f = x.a.fork(x.exec, s);
  CHECK(x.a.stats().rows_copied == 0);
  CHECK(x.a.stats().pages_used == used);
  CHECK(x.a.stats().pages_shared == used);
  feed(x.a, x.exec, f, tokens(200, 1));
  CHECK(x.a.stats().rows_copied == 4 * (100 % 16));
  const sequence even = x.a.fork(x.exec, s, 96);
  feed(x.a, x.exec, even, tokens(300, 1));
  CHECK(x.a.stats().rows_copied == 4 * (100 % 16));
}

TEST_CASE("bytes that were asked for beforehand are those that the pools hold") {
  caches<paged_of<float, 16>> x;
  const cache_bytes bytes = decltype(x.a)::bytes(x.g);
  std::int64_t rows = 0;
  for (int layer = 0; layer < x.g.layers; ++layer) rows += row_bytes<float>(paged_of<float, 16>::shape, x.row_pages(layer), x.g.kv_heads);
  CHECK(bytes.rows == rows);
  CHECK(bytes.columns == x.row_pages(1) * x.g.kv_heads * 64);
  CHECK(bytes.total() == bytes.rows + bytes.columns + bytes.tables);
}
