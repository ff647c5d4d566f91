// Memory that runs out at any allocation of any call leaves everything as it was. Replaces operator new for its program: compiled alone.

#include <support/engine_pages.hpp>
#include <support/failing_allocator.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

// Not inlined: a compiler that sees malloc behind new and free behind delete warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return kvx::test::allocations::make(bytes, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t a) {
  return kvx::test::allocations::make(bytes, static_cast<std::size_t>(a));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

using namespace kvx;
using test::allocation_failure, test::allocations, test::append_all, test::counts, test::feed, test::snapshot, test::tokens;

/// Fails allocation 0, 1, 2, ... of the call until none fails; it must throw each time before, and `look` must see no change. Returns how
/// many allocations the call makes.
template <class Look, class Call>
std::int64_t survive(const char* what, const Look& look, const Call& call) {
  CAPTURE(what);
  for (std::int64_t n = 0; n < 1000; ++n) {
    CAPTURE(n);
    const auto before = look();
    bool threw = false, failed = false;
    {
      const allocation_failure failure(n);
      try {
        call();
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      failed = failure.happened();
    }
    if (failed) REQUIRE(threw);
    if (!threw) return n;
    REQUIRE(look() == before);
  }
  FAIL("never succeeds");
  return -1;
}

template <class Layout>
struct fixture {
  using cache_type = cache<host, spec<Layout, test::checksum_index>>;
  test::failing_resource memory;
  host exec{.threads = 1, .parallel = serial(), .memory = &memory};
  geometry g{.layers = 3,
             .kv_heads = 2,
             .query_heads = 4,
             .max_tokens = 300,
             .max_sequences = 4,
             .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9, 2)},
             .rollback = 16};
  cache_type c{exec, {}, g};
  sequence a = c.open(exec);
  sequence b{}, spare{};

  fixture() {
    feed(c, exec, a, tokens(1, 30));
    b = c.fork(exec, a);
    feed(c, exec, b, tokens(300, 1));
    spare = c.fork(exec, a);  // shares the last page of a
    spare = (c.close(exec, spare), c.fork(exec, a, 20));
  }

  template <class Call>
  std::int64_t survive(const char* what, const Call& call) {
    const auto look = [&] { return std::tuple(counts(c.stats()), snapshot(c, a), snapshot(c, b)); };
    return ::survive(what, look, call);
  }
};

template <element E, int P>
using paged_of = paged<E, page_shape{.tokens = P, .key_dim = 5, .value_dim = 3}, zones{.sink = 2, .local = 3}>;
template <element E, int P>
using slabs_of = contiguous<E, page_shape{.tokens = P, .key_dim = 5, .value_dim = 3}, zones{.sink = 2, .local = 3}>;
template <element E, int P>
using external_of = external<E, page_shape{.tokens = P, .key_dim = 5, .value_dim = 3}, zones{.sink = 2, .local = 3}>;

constexpr dci_shape by_tree{.block = 8, .rank = dci_shape::ranking::best_member, .first_promotion = 300};

/// What a caller can see of the columns of one sequence of an external cache: its length, and the column of each page of the retrieval
/// zone.
template <class Cache>
std::vector<std::uint64_t> columns_of(const Cache& c, sequence s, int layer) {
  constexpr int P = Cache::layout::shape.tokens;
  const std::int64_t n = c.length(s);
  std::vector<std::uint64_t> all = {static_cast<std::uint64_t>(n)};
  const auto pages = c.pages(layer, s);
  for (std::int64_t j = Cache::zones.sink / P; j < edge(Cache::zones, n, P) / P; ++j) {
    for (int h = 0; h < c.geometry().kv_heads; ++h)
      std::memcpy(&all.emplace_back(), c.column(layer, 0).at(pages[static_cast<std::size_t>(j)], h), sizeof(all[0]));
  }
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("every call survives every failing allocation", L, paged_of<float, 4>, paged_of<half, 16>, slabs_of<bf16, 4>) {
  fixture<L> x;
  auto& c = x.c;
  const host& exec = x.exec;
  const sequence a = x.a, b = x.b, spare = x.spare;
  const std::vector<test::token> ids = tokens(600, 26);
  const auto k = test::rows_of<float>(ids, test::part::key, 0, 2, 5), v = test::rows_of<float>(ids, test::part::value, 0, 2, 3),
             q = test::rows_of<float>(ids, test::part::query, 0, 4, 5);
  std::vector<float> out(26 * 4 * 3);

  CHECK(x.survive("close", [&] { c.close(exec, spare); }) == 0);  // it allocates nothing
  std::optional<sequence> opened;
  x.survive("open", [&] { opened = c.open(exec); });
  x.survive("close", [&] { c.close(exec, *opened); });
  std::optional<sequence> fork;
  CHECK(x.survive("fork", [&] { fork = c.fork(exec, a); }) > 0);
  c.close(exec, *fork);
  x.survive("fork of the first tokens", [&] { fork = c.fork(exec, a, 26); });
  CHECK(x.survive("truncate", [&] { c.truncate(exec, *fork, 20); }) == 0);

  std::optional<step> step;
  CHECK(x.survive("begin", [&] { step = c.begin(exec, {{a, 20}, {b, 0}, {*fork, 6}}); }) > 5);
  for (int layer = 0; layer < 3; ++layer) {
    CHECK(x.survive("append", [&] { c.append(exec, *step, layer, k.data(), v.data()); }) == 0);
    CHECK(x.survive("attend", [&] { c.attend(exec, *step, layer, q.data(), out.data()); }) == 0);
  }
  CHECK(x.survive("commit", [&] { c.commit(exec, *step); }) > 0);
  CHECK(c.length(a) == 50);
  step.reset();
  x.survive("page tables", [&] { c.pages(0, std::vector<sequence>{a, b}); });
  x.survive("stats", [&] { c.stats(); });
  for (const sequence s : {a, b, *fork}) c.close(exec, s);
  CHECK(c.stats().pages_used == 0);
}

TEST_CASE_TEMPLATE("every call on rows in the caller's pages survives every failing allocation", L, external_of<float, 4>,
                   external_of<bf16, 16>) {
  const host exec = test::one_thread();
  const geometry g{.layers = 2,
                   .kv_heads = 2,
                   .query_heads = 4,
                   .max_tokens = 300,
                   .max_sequences = 3,
                   .kinds = {layer_kind::dense(), layer_kind::retrieve()},
                   .rollback = 16};
  cache<host, spec<L, test::checksum_index>> c(exec, {}, g);
  test::engine_pages<typename L::element_type> engine(g, L::shape, {}, 120, 5);
  const sequence a = c.open(exec);
  std::vector<std::int32_t> pages, fork_pages;
  const auto look = [&] { return std::pair(counts(c.stats()), columns_of(c, a, 1)); };
  std::optional<step> step;
  for (const std::int64_t more : {30, 60}) {  // the second time with tables that are no longer empty
    CAPTURE(more);
    const std::int64_t n = c.length(a);
    const auto ids = tokens(static_cast<test::token>(n), more);
    engine.grow(pages, n, more);
    for (int layer = 0; layer < 2; ++layer) {
      const auto rows = engine.rows(layer);
      CHECK(survive("bind", look, [&] { c.bind(layer, rows); }) == 0);
      engine.write(pages, n, ids, layer);
    }
    CHECK(survive("begin", look, [&] { step = c.begin(exec, {{a, more, pages}}); }) > 0);
    const auto q = test::rows_of<float>(ids, test::part::query, 0, 4, 5);
    std::vector<float> out(static_cast<std::size_t>(more) * 4 * 3);
    for (int layer = 0; layer < 2; ++layer) {
      CHECK(survive("append", look, [&] { c.append(exec, *step, layer); }) == 0);
      CHECK(survive("attend", look, [&] { c.attend(exec, *step, layer, q.data(), out.data()); }) == 0);
    }
    survive("commit", look, [&] { c.commit(exec, *step); });
    CHECK(c.length(a) == n + more);
    step.reset();
  }
  std::optional<sequence> fork;
  CHECK(survive("fork", look, [&] { fork = c.fork(exec, a, 82); }) > 0);
  fork_pages = engine.fork(pages, 82);
  CHECK(survive("truncate", look, [&] { c.truncate(exec, *fork, 79); }) == 0);
  engine.cut(fork_pages, 79);
  engine.grow(fork_pages, 79, 4);
  CHECK(survive("begin behind a shared page", look, [&] { step = c.begin(exec, {{*fork, 4, fork_pages}}); }) > 0);
  step.reset();
  CHECK(survive("close", look, [&] { c.close(exec, *fork); }) == 0);
  c.close(exec, a);
  CHECK(c.stats().pages_used == 0);
}

TEST_CASE("steps that learn, and those that fix a balance over shared pages, survive every failing allocation") {
  using learning = spec<paged_of<bf16, 4>, sign_buckets<key_sketch{.bits = 1, .balance = 16}>, pass_through>;
  const host exec = test::one_thread();
  cache<host, learning> c(
      exec, {}, {.layers = 1, .kv_heads = 2, .query_heads = 4, .max_tokens = 100, .max_sequences = 3, .kinds = {layer_kind::retrieve()}});
  const sequence a = c.open(exec);
  feed(c, exec, a, tokens(1, 14));
  const sequence b = c.fork(exec, a);
  std::optional<sequence> fork;
  const auto look = [&] { return std::tuple(counts(c.stats()), snapshot(c, a), snapshot(c, b)); };
  const std::vector<test::token> ids = tokens(50, 11);
  for (const sequence s : {a, b}) {
    std::optional<step> step;
    CHECK(survive("begin", look, [&] { step = c.begin(exec, {{s, 11}}); }) > 5);
    append_all(c, exec, *step, ids);
    const auto q = test::rows_of<float>(ids, test::part::query, 0, 4, 5);
    CHECK(survive("observe", look, [&] { c.observe(exec, *step, 0, q.data()); }) == 0);
    CHECK(survive("commit", look, [&] { c.commit(exec, *step); }) > 0);
    CHECK(survive("fork", look, [&] { fork = c.fork(exec, s); }) > 0);
    c.close(exec, *fork);
  }
  CHECK(c.stats().balanced_sequences == 2);
  CHECK(c.stats().rows_copied > 0);
}

TEST_CASE_TEMPLATE("steps that pack blocks, follow a tree and keep selections survive every failing allocation", Reranker, pass_through,
                   rsq_ip<4, tiers{.value_bits = 4, .tail = true}>) {
  using packing =
      spec<paged<bf16, page_shape{.tokens = 4, .key_dim = 5, .value_dim = 3}, zones{.sink = 4, .local = 3}>, dci_tree<by_tree>, Reranker>;
  const host exec = test::one_thread();
  packing of;
  of.index.reuse = {.layers = 1, .steps = 2};
  cache<host, packing> c(
      exec, of, {.layers = 1, .kv_heads = 2, .query_heads = 4, .max_tokens = 160, .max_sequences = 3, .kinds = {layer_kind::retrieve()}});
  const sequence a = c.open(exec);
  feed(c, exec, a, tokens(1, 30));
  const sequence b = c.fork(exec, a);
  const auto look = [&] { return std::tuple(counts(c.stats()), snapshot(c, a), snapshot(c, b)); };
  const attend_options few{.keep = 8, .path = attend_options::route::retrieve};
  const std::vector<test::token> ids = tokens(50, 11);
  const auto q = test::rows_of<float>(ids, test::part::query, 0, 4, 5);
  std::vector<float> out(11 * 4 * 3), of_a;
  for (const sequence s : {a, b}) {
    std::optional<step> step;
    CHECK(survive("begin", look, [&] { step = c.begin(exec, {{s, 11}}); }) > 5);
    append_all(c, exec, *step, ids);
    survive("attend", look, [&] { c.attend(exec, *step, 0, q.data(), out.data(), few); });
    CHECK(survive("commit", look, [&] { c.commit(exec, *step); }) > 0);
    step.reset();
    step = c.begin(exec, {{s, 11}});
    append_all(c, exec, *step, ids);
    c.attend(exec, *step, 0, q.data(), out.data(), few);
    step.reset();
    CHECK(survive("truncate", look, [&] { c.truncate(exec, s, 41); }) == 0);
    if (s == a) of_a = out;
  }
  CHECK(out == of_a);  // forks that were told the same
}

TEST_CASE("a step that fails while it is begun gives everything back, shared pages too") {
  fixture<paged_of<float, 16>> x;
  x.c.close(x.exec, x.spare);
  const sequence f = x.c.fork(x.exec, x.a);
  const auto bits = snapshot(x.c, f);
  // Scratch of a prompt: the one allocation that begin takes from the backend's memory.
  const auto before = counts(x.c.stats());
  x.memory.until_failure = 0;
  CHECK_THROWS_AS(x.c.begin(x.exec, {{f, 120}, {x.a, 40}}), std::bad_alloc);
  CHECK(x.memory.until_failure == -1);
  CHECK(counts(x.c.stats()) == before);
  CHECK(snapshot(x.c, f) == bits);
  CHECK_NOTHROW(x.c.begin(x.exec, {{f, 120}, {x.a, 40}}));
}

TEST_CASE("a cache that cannot be built leaves nothing behind") {
  fixture<paged_of<float, 4>> x;
  const std::int64_t blocks = x.memory.blocks;
  using cache_type = decltype(x.c);
  for (std::int64_t n = 0; n < 1000; ++n) {
    try {
      const allocation_failure failure(n);
      const cache_type c(x.exec, {}, x.g);
      if (failure.happened()) FAIL("a failure was swallowed");
      CHECK(n > 10);
      break;
    } catch (const std::bad_alloc&) {
      CHECK(x.memory.blocks == blocks);
    }
  }
  x.memory.until_failure = 0;
  CHECK_THROWS_AS(cache_type(x.exec, {}, x.g), std::bad_alloc);
  CHECK(x.memory.blocks == blocks);
}
