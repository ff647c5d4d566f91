// Rows in host memory: short decodes beside all rows near, replayed steps, what is refused, and what is counted.

#include "offload_twins.cuh"

#include <kvx/aliases.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace {

using namespace kvx;
using test::decode_far, test::feed, test::paris, test::snapshot, test::tokens;
using route = attend_options::route;

using far_paris = paris<float, 16, placement::offload_uva>;

/// One sequence whose tokens come in steps of 20; the tokens of its cache's near memory are `near`.
template <class Spec>
struct one_sequence {
  test::test_stream stream;
  device exec{.stream = stream.get()};
  geometry g;
  test::cache_on_host<Spec> c{exec, {}, g};
  sequence s = c.open(exec);

  explicit one_sequence(std::int64_t near)
      : g{.layers = 3, .kv_heads = 2, .query_heads = 2, .max_tokens = 600, .max_sequences = 3, .near_tokens = near, .hot_rows = 16} {}
  void grow(test::token first, std::int64_t n) {
    for (std::int64_t i = 0; i < n; i += 20)
      feed(c, exec, s, tokens(first + static_cast<test::token>(i), std::min<std::int64_t>(20, n - i)));
  }
};

}  // namespace

TEST_CASE("a decode with rows in host memory gives the bits of one with all rows near") {
  decode_far<paris<float, 16, placement::resident>, far_paris>(5, 7, 200, 48, {.keep = 12, .path = route::retrieve});
}
TEST_CASE("the oldest pages leave first, sinks and recent tokens stay, and a cut brings back what it needs") {
  one_sequence<far_paris> x(160);
  x.grow(1, 400);
  const auto far = [&](std::int64_t page) {
    const auto placed = x.c.on_device().placed(2);
    return placed.frames[static_cast<std::size_t>(x.c.pages(2, x.s)[static_cast<std::size_t>(page)])] >= placed.far.near_pages;
  };
  CHECK(!far(0));  // holds the sinks
  for (std::int64_t page = 1; page < 15; ++page) CHECK(far(page));
  for (std::int64_t page = 23; page < 25; ++page) CHECK(!far(page));
  const auto before = snapshot(x.c, x.s);
  x.c.truncate(x.exec, x.s, 200);
  feed(x.c, x.exec, x.s, tokens(201, 1));
  for (std::int64_t page = 11; page < 13; ++page) CHECK(!far(page));
  for (test::token t = 202; t <= 400; ++t) feed(x.c, x.exec, x.s, tokens(t, 1));
  CHECK(snapshot(x.c, x.s) == before);
}

TEST_CASE("a step that needs more near than there is is refused, and nothing changes") {
  one_sequence<far_paris> x(100);
  x.grow(1, 300);
  const auto before = snapshot(x.c, x.s);
  const auto counts = test::counts(x.c.stats());
  CHECK_THROWS_AS(x.c.begin(x.exec, {{x.s, 120}}), capacity_error);
  CHECK(snapshot(x.c, x.s) == before);
  CHECK(test::counts(x.c.stats()) == counts);
  x.grow(301, 20);
  CHECK(x.c.length(x.s) == 320);
}

TEST_CASE("a step that is open beside another finds its rows where they were") {
  one_sequence<far_paris> x(220), y(600);
  const auto steps = [](auto& w) {
    w.grow(1, 300);
    const sequence fork = w.c.fork(w.exec, w.s, 150);
    step first = w.c.begin(w.exec, {{w.s, 1}});
    step second = w.c.begin(w.exec, {{fork, 3}});  // brings near what the first reads far
    test::append_all(w.c, w.exec, second, tokens(900, 3));
    test::append_all(w.c, w.exec, first, tokens(800, 1));
    auto all = test::attend_all(w.c, w.exec, first, tokens(800, 1), {.keep = 40, .path = route::retrieve});
    const auto other = test::attend_all(w.c, w.exec, second, tokens(900, 3), {.keep = 40, .path = route::retrieve});
    all.insert(all.end(), other.begin(), other.end());
    return all;
  };
  CHECK(steps(x) == steps(y));
}

TEST_CASE("rows, bytes and choices are counted by place") {
  one_sequence<far_paris> x(160);
  x.grow(1, 400);
  for (test::token t = 401; t < 405; ++t) {
    step s = x.c.begin(x.exec, {{x.s, 1}});
    test::append_all(x.c, x.exec, s, tokens(t, 1));
    test::attend_all(x.c, x.exec, s, tokens(1, 1), {.keep = 8, .path = route::retrieve});  // the same query: the same choice
    x.c.commit(x.exec, s);
  }
  const cache_stats stats = x.c.stats();
  CHECK(stats.selected_near + stats.selected_hot + stats.selected_far == 4 * 2 * 8);
  CHECK(stats.selected_far > 0);
  CHECK(stats.selected_far <= 2 * 8 + 4);
  CHECK(stats.hit_rate() > .6);
  const cache_bytes bytes = x.c.on_device().bytes(x.g);
  const std::int64_t page = row_bytes<float>(far_paris::layout_type::shape, 1, 2);
  CHECK(bytes.rows == 2 * 41 * page + 10 * page);
  CHECK(stats.far_bytes == (26 - 10) * page);
  CHECK(stats.row_bytes == (2 * 26 + 10) * page);
  CHECK(bytes.far >= (41 - 10) * page);
  CHECK(stats.slot_bytes == bytes.slots);
  CHECK(cache<host, far_paris>::bytes(x.g).far == 0);
}

TEST_CASE("misuse") {
  one_sequence<far_paris> x(160);
  CHECK_THROWS_AS(x.c.on_device().view(2), usage_error);
  CHECK_THROWS_AS(x.c.on_device().placed(0), usage_error);
  CHECK(x.c.on_device().view(0).heads == 2);
  geometry g = x.g;
  g.hot_rows = most_hot_rows + 1;
  CHECK_THROWS_AS((cache<device, far_paris>(x.exec, {}, g)), usage_error);
  CHECK_THROWS_AS((cache<device, full<float, 24>>(x.exec, {}, x.g)), usage_error);
#ifndef __CUDACC__
  const int before = simt::registered_ranges();
  simt::registrations_until_failure = 0;
  CHECK_THROWS_AS((cache<device, far_paris>(x.exec, {}, x.g)), capacity_error);
  CHECK(simt::registered_ranges() == before);
  CHECK(cudaGetLastError() == cudaSuccess);
#endif
}
