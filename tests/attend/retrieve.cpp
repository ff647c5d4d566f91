// A decode step attends to what the references of its stages select, and to everything where the budget covers the zone.

#include "../support/retrieve_case.hpp"
#include "../support/thread_pool.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

key_sketch sketch_of(int subspace) { return {.subspace = subspace, .balance = 0}; }

constexpr key_sketch plain{.centre = false, .balance = 0, .norms = false};  // as published

}  // namespace

TEST_CASE("keep covers the zone: dense attention, every dim with m 4, 8 and 16, by sums and by votes") {
  for (int dim = 1; dim <= 576; ++dim) {
    for (const int m : {4, 8, 16}) {
      CAPTURE(dim);
      CAPTURE(m);
      const retrieve_case c({.rows = {.key_dim = dim, .value_dim = 1 + dim * 37 % 90, .lengths = {43}},
                             .group = 1 + dim % 3,
                             .sketch = sketch_of(m),
                             .by = m < 16 && dim % 3 == 0 ? voting : bucket_scoring{},
                             .cut = {.sink = 3, .local = 7}});
      REQUIRE(distance(c.attend({.keep = 100}), c.dense({})) <= 1);
    }
  }
}

TEST_CASE("keep covers the zone: dense attention for groups 1 to 16 and 64, sequences of any length in one batch") {
  std::vector<int> groups = {64};
  for (int g = 1; g <= 16; ++g) groups.push_back(g);
  for (const int group : groups) {
    CAPTURE(group);
    const retrieve_case c(
        {.rows = {.heads = 2, .key_dim = 40, .value_dim = 24, .lengths = {1, 2, 5, 36, 37, 64, 101, 300}}, .group = group});
    CHECK(distance(c.attend({.keep = everything}), c.dense({})) <= 1);
    CHECK(distance(c.attend({.keep = 300, .scale = .3f, .soft_cap = 2}), c.dense({.scale = .3f, .soft_cap = 2})) <= 1);
  }
}

TEST_CASE("every length around pages, zones and several new tokens") {
  for (std::int64_t n = 3; n <= 120; ++n) {
    CAPTURE(n);
    const retrieve_case c({.rows = {.key_dim = 24, .value_dim = 8, .lengths = {n, 200}}, .queries = 3});
    CHECK(distance(c.attend({.keep = everything}), c.dense({})) <= 1);
    CHECK(distance(c.attend({.keep = 5}), c.expected({.keep = 5})) <= 1);
    CHECK(distance(c.attend({.keep = 0}), c.expected({.keep = 0})) <= 1);
  }
}

TEST_CASE("what is attended to is what the references of the stages select") {
  struct composition {
    key_sketch sketch;
    bucket_scoring by;
  };
  constexpr bucket_scoring mean_query{.of = bucket_scoring::query::mean_query};
  const composition all[] = {{sketch_of(8), {}},     {sketch_of(8), mean_query}, {plain, voting},
                             {sketch_of(4), voting}, {sketch_of(16), {}},        {plain, {}}};
  for (const composition& of : all) {
    for (const auto rule : {group_rule::kind::mean, group_rule::kind::max, group_rule::kind::softmax_sum}) {
      for (const int dim : {20, 72}) {
        if (rule != group_rule::kind::softmax_sum && &of != all && dim != 20) continue;
        CAPTURE(dim);
        CAPTURE(of.sketch.subspace);
        CAPTURE(static_cast<int>(rule));
        const retrieve_case c({.rows = {.heads = 2, .page_tokens = 64, .key_dim = dim, .value_dim = 16, .lengths = {400, 40, 600}},
                               .group = 3,
                               .sketch = of.sketch,
                               .by = of.by,
                               .rule = {rule}});
        for (const retrieve_options& o : {retrieve_options{.keep = 20},
                                          {.keep = 64, .breadth = {.fraction = .1, .per_kept = 1}},
                                          {.keep = 50, .breadth = {.fraction = .01, .per_kept = 0}},  // fewer candidates than are kept
                                          {.keep = 1},
                                          {.keep = 30, .scale = .4f, .soft_cap = 1.5f},
                                          {.keep = 900, .breadth = {.fraction = 1}}}) {
          CAPTURE(o.keep);
          CHECK(distance(c.attend(o), c.expected(o)) <= 1);
        }
        CHECK(distance(c.attend({.keep = 20}), c.dense({})) > 1);
      }
    }
  }
}

TEST_CASE("any number of threads gives the same bits, with or without lse") {
  const retrieve_case c(
      {.rows = {.heads = 3, .page_tokens = 64, .key_dim = 64, .value_dim = 64, .lengths = {900, 31, 2000, 500}}, .queries = 2});
  const retrieved one = c.attend({.keep = 40});
  for (const int threads : {2, 5}) CHECK(c.attend({.keep = 40}, {.threads = threads, .parallel = std_threads()}) == one);
}
