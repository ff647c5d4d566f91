// Caches of semantic pages under random operations: rows, columns, queries seen and what is retrieved are those of one straight run.

#include "blocks_player.hpp"

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

namespace {

using namespace kvx;

template <class Cache>
void play(int name) {
  for (int run = 0; run < test::runs; ++run) {
    const std::uint64_t seed = test::seed_of(name, run);
    CAPTURE(seed);
    test::blocks_player<Cache> p(seed);
    const int count = std::max(1, test::operations() / 10);
    for (int i = 0; i < count; ++i) {
      CAPTURE(i);
      p.play();
    }
    if (count < 1000) continue;
    CHECK(p.commits > count / 4);
    CHECK(p.drops > count / 50);
    CHECK(p.shortages > count / 100);
    CHECK(p.checked > count / 5);
    CHECK(p.retrieved > p.checked / 3);
  }
}

using pages = paged<bf16, test::small_page, test::blocks_cut>;
using slabs = contiguous<bf16, test::small_page, test::blocks_cut>;
template <class Layout, dci_shape Shape, class Reranker = pass_through>
using ice = cache<host, spec<Layout, dci_tree<Shape>, Reranker>>;

using packing = dci_shape::packing;
using metric = dci_shape::metric;
using ranking = dci_shape::ranking;

}  // namespace

TEST_CASE("bisection in the metric of the queries, best members through the tree, composite indices") {
  play<ice<pages,
           dci_shape{
               .block = 16, .by = metric::diagonal, .rank = ranking::best_member, .first_promotion = 200, .simple = 2, .composite = 2}>>(
      1000);
}

TEST_CASE("cells cut by a projection, the best tokens by their codes, the others in tiers") {
  play<ice<pages,
           dci_shape{.block = 16, .pack = packing::projection, .by = metric::keys, .rank = ranking::best_member, .first_promotion = 200},
           rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>>(1100);
}

TEST_CASE("nearest tokens, members by their codes, in slabs") {
  play<ice<slabs, dci_shape{.block = 8, .pack = packing::greedy, .by = metric::diagonal, .rank = ranking::coded_member}>>(1200);
}

TEST_CASE("mean keys, then members") {
  play<ice<pages, dci_shape{.block = 8, .by = metric::diagonal, .rank = ranking::mean_then_member}>>(1300);
}
