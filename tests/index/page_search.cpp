// A search without limits finds what looking at every token finds; with limits it finds most of it, and says what it looked at.

#include <support/dci_tree.hpp>

#include <kvx/index/dci_lists.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

using ranking = dci_shape::ranking;

/// Queries of one group.
struct group_of_queries {
  std::vector<float> values;
  int group, dim;

  group_of_queries(int g, int d, unsigned seed) : group(g), dim(d) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < g * d; ++i) values.push_back(2 * normal(random));
  }
  tensor_view<const float, 2> view() const { return tensor_view<const float, 2>(values.data(), group, dim); }
};

struct found_pages {
  std::vector<std::int32_t> pages;
  page_search_result result;
};

template <class E>
found_pages search(const dci_shape& shape, const dci_head<E>& of, const dci_cells& cells, const page_query& query,
                   const page_search& options) {
  const int group = static_cast<int>(query.queries.extents[0]);
  const memory_block scratch(std::pmr::new_delete_resource(),
                             search_pages_bytes({of.rows.page_tokens, of.rows.key_dim, 8}, group, query.end, options));
  std::fill_n(scratch.data(), scratch.size(), std::byte{0x7f});
  found_pages found;
  found.pages.assign(static_cast<std::size_t>(options.pages), -7);
  found.result =
      search_pages(host{}, shape, of, cells, query, options, found.pages, {scratch.data(), static_cast<std::size_t>(scratch.size())});
  found.pages.resize(static_cast<std::size_t>(found.result.found));
  return found;
}

/// Scores of pages from the definition: each head's best member, or its mean; softmax over pages and residents, summed over heads.
template <class E>
std::vector<double> plain_scores(const dci_shape& shape, const dci_head<E>& of, const page_query& query, group_rule::kind by, bool means) {
  const std::int64_t P = of.rows.page_tokens, pages = query.end / P, G = query.queries.extents[0];
  const double scale = query.scale != 0 ? static_cast<double>(query.scale) : 1 / std::sqrt(static_cast<double>(of.rows.key_dim));
  std::vector<double> scores(static_cast<std::size_t>(pages), -1e300);
  std::vector<std::vector<double>> logits(static_cast<std::size_t>(G), std::vector<double>(static_cast<std::size_t>(pages), -1e300));
  for (std::int64_t j = query.begin / P; j < pages; ++j) {
    const packed_page page = of.packed(shape, j);
    for (std::int64_t g = 0; g < G; ++g) {
      const auto dot = [&](const auto* row) {
        double sum = 0;
        for (int d = 0; d < of.rows.key_dim; ++d)
          sum += static_cast<double>(*query.queries.at(g, d)) * static_cast<double>(to_float(row[d]));
        return sum * scale;
      };
      double& best = logits[static_cast<std::size_t>(g)][static_cast<std::size_t>(j)];
      for (int i = 0; i < page.count(); ++i)
        best = std::max(best, means ? dot(of.mean_of(j)) : dot(of.key(j * P / shape.block * shape.block + page.member(i))));
    }
  }
  std::vector<double> sums;
  for (std::int64_t g = 0; g < G; ++g) {
    double sum = query.resident != nullptr ? std::exp(static_cast<double>(query.resident[g])) : 0;
    for (const double x : logits[static_cast<std::size_t>(g)]) sum += std::exp(x);
    sums.push_back(sum);
  }
  for (std::size_t j = 0; j < scores.size(); ++j) {
    if (logits[0][j] < -1e299) continue;
    double sum = 0, most = -1e300;
    for (std::size_t g = 0; g < logits.size(); ++g) {
      sum += by == group_rule::kind::mean ? logits[g][j] / static_cast<double>(G) : std::exp(logits[g][j]) / sums[g];
      most = std::max(most, logits[g][j]);
    }
    scores[j] = by == group_rule::kind::max ? most : sum;
  }
  return scores;
}

/// The pages are the best by these scores, best first, up to float rounding.
void check_best(const found_pages& found, const std::vector<double>& scores, std::int64_t wanted) {
  std::vector<double> order;
  for (const double x : scores) {
    if (x > -1e299) order.push_back(x);
  }
  std::sort(order.rbegin(), order.rend());
  REQUIRE(found.pages.size() == std::min<std::size_t>(order.size(), static_cast<std::size_t>(wanted)));
  for (std::size_t i = 0; i < found.pages.size(); ++i) {
    const double x = scores[static_cast<std::size_t>(found.pages[i])];
    CHECK(std::fabs(x - order[i]) <= 2e-5 * std::max(1.0, std::fabs(order[i])));
  }
}

template <class E>
void check_searches(int dim, int group, std::int64_t sink, std::int64_t end) {
  for (const ranking rank :
       {ranking::best_member, ranking::coded_member, ranking::mean_key, ranking::mean_then_member, ranking::two_level_means}) {
    const dci_shape shape{.block = 64, .rank = rank, .first_promotion = 60};
    dci_world<E> world(shape, 8, dim, 512, sink, 1, static_cast<unsigned>(dim));
    world.set_key(77, 0, quiet_nan);
    world.index(0, 8);
    dci_lists lists;
    if (keeps_links(shape)) lists.sync(world.head(), 0, 512);           // more than the zone may hold
    const group_of_queries q(group, dim, 3);
    const std::vector<float> resident(static_cast<std::size_t>(group), 2.0f);
    for (const group_rule::kind rule : {group_rule::kind::softmax_sum, group_rule::kind::mean, group_rule::kind::max}) {
      const page_query query{q.view(), resident.data(), 0, sink, end};
      const page_search everything{.pages = 9, .beam = 4096, .probes = 4096, .rule = {rule}};
      CAPTURE(static_cast<int>(rank));
      CAPTURE(static_cast<int>(rule));
      const found_pages found = search(shape, world.head(), lists.cells(), query, everything);
      check_best(found, plain_scores(shape, world.head(), query, rule, rank == ranking::mean_key || rank == ranking::two_level_means), 9);
      const std::int64_t keys = end - sink - (rank == ranking::best_member || rank == ranking::mean_then_member ? 1 : 0);  // not the NaN
      CHECK(found.result.keys == (rank == ranking::mean_key || rank == ranking::two_level_means ? 0 : keys));
      CHECK(std::find(found.pages.begin(), found.pages.end(), static_cast<std::int32_t>(sink / 8) - 1) == found.pages.end());
    }
  }
}

}  // namespace

TEST_CASE("pages of equal worth: the first one first, whichever was looked at first") {
  const dci_shape shape{.block = 64, .pack = dci_shape::packing::positional, .rank = ranking::mean_then_member};
  dci_world<float> world(shape, 8, 16, 1024);
  for (std::int64_t t = 0; t < 1024; ++t) {
    for (int d = 0; d < 16; ++d) world.set_key(t, d, 0);
  }
  for (const auto& [page, spread] : {std::pair{5, 1.9f}, std::pair{40, 2.0f}, std::pair{50, 2.0f}}) {  // page 5 promises the least
    for (int i = 0; i < 8; ++i) {
      world.set_key(page * 8 + i, 0, 1);
      world.set_key(page * 8 + i, 1, i < 4 ? spread : -spread);
    }
  }
  world.index(0, 16);
  group_of_queries q(1, 16, 3);
  std::fill(q.values.begin(), q.values.end(), 0.0f);
  q.values[0] = 4;
  const found_pages found = search(shape, world.head(), {}, {q.view(), nullptr, 0, 0, 1024}, {.pages = 2});
  CHECK(found.result.keys < 64);
  CHECK(found.pages == std::vector<std::int32_t>{5, 40});
}

TEST_CASE_TEMPLATE("without limits every ranking finds the best pages", E, float, half, bf16) {
  check_searches<E>(64, 4, 16, 512);
  check_searches<E>(46, 1, 0, 448);
  check_searches<E>(20, 7, 64, 512);
}

TEST_CASE("an unlimited beam finds what looking at every token finds, to the bit and the tie") {
  for (const int equal : {0, 1, 2}) {
    dci_shape shape{.block = 64, .rank = ranking::best_member, .first_promotion = 80};
    dci_world<bf16> world(shape, 16, 32, 1024, 32);
    for (std::int64_t t = 0; t < 1024 && equal != 0; ++t) {
      for (int d = 0; d < 32; ++d) world.set_key(t, d, equal == 1 ? .5f : 0.0f);
    }
    world.index(0, 16);
    dci_lists lists;
    lists.sync(world.head(), 0, 1024);
    const group_of_queries q(5, 32, 2);
    for (const int pages : {1, 12, 62, 63, 1000}) {
      for (const bool interleave : {false, true}) {
        const page_query query{q.view(), nullptr, .3f, 32, 1024};
        const page_search options{.pages = pages, .beam = 1 << 20, .interleave = interleave};
        shape.rank = ranking::best_member;
        const found_pages tree = search(shape, world.head(), lists.cells(), query, options);
        shape.rank = ranking::coded_member;
        const found_pages all = search(shape, world.head(), {}, query, options);
        CHECK(tree.pages == all.pages);
        CHECK(tree.result.found == std::min(pages, 62));
        CHECK(tree.result.keys == 1024 - 32);
        if (equal != 0) CHECK(tree.pages.front() == 2);                 // the lowest position
      }
    }
  }
}

TEST_CASE("a beam finds a planted key that no mean shows, for a part of the inner products") {
  const dci_shape shape{.block = 256, .rank = ranking::best_member};
  constexpr std::int64_t tokens = 8192;
  dci_world<bf16> world(shape, 16, 64, tokens, 32);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> centres(40, std::vector<float>(64));
  for (auto& centre : centres) {
    for (float& x : centre) x = normal(random);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto& centre = centres[random() % centres.size()];
    for (int d = 0; d < 64; ++d) world.set_key(t, d, centre[static_cast<std::size_t>(d)] + .5f * normal(random));
  }
  constexpr std::int64_t needle = 3000;
  std::vector<float> direction(64);
  for (float& x : direction) x = 2 * normal(random);
  for (int d = 0; d < 64; ++d) world.set_key(needle, d, direction[static_cast<std::size_t>(d)]);
  world.index(0, tokens / 256);
  dci_lists lists;
  lists.sync(world.head(), 0, tokens);
  const auto needle_page = static_cast<std::int32_t>(world.head().semantic_page(shape, needle));
  int agreed = 0, wanted = 0;
  for (int i = 0; i < 20; ++i) {
    group_of_queries q(4, 64, static_cast<unsigned>(i));
    const auto& centre = centres[random() % centres.size()];
    for (std::size_t x = 0; x < q.values.size(); ++x) q.values[x] = i == 0 ? direction[x % 64] : .5f * q.values[x] + centre[x % 64];
    const page_query query{q.view(), nullptr, 0, 32, tokens};
    dci_shape by = shape;
    const found_pages tree = search(by, world.head(), lists.cells(), query, {});
    by.rank = ranking::coded_member;
    const found_pages all = search(by, world.head(), {}, query, {});
    CHECK(tree.result.keys < tokens / 5);
    if (i == 0) CHECK(tree.pages.front() == needle_page);
    for (const std::int32_t j : all.pages) agreed += std::find(tree.pages.begin(), tree.pages.end(), j) != tree.pages.end() ? 1 : 0;
    wanted += static_cast<int>(all.pages.size());
  }
  CHECK(agreed > wanted * 7 / 10);
}

TEST_CASE("heads in turn: each head's best page, then each one's second, until there are enough") {
  const dci_shape shape{.block = 64, .rank = ranking::coded_member};
  dci_world<bf16> world(shape, 16, 32, 512, 16);
  world.index(0, 8);
  const group_of_queries q(3, 32, 9);
  std::vector<std::vector<std::int32_t>> orders;
  for (int g = 0; g < 3; ++g) {
    const tensor_view<const float, 2> alone(q.values.data() + g * 32, 1, 32);
    orders.push_back(search(shape, world.head(), {}, {alone, nullptr, 0, 16, 512}, {.pages = 31}).pages);
    REQUIRE(orders.back().size() == 31);
  }
  std::vector<std::int32_t> expected;
  for (std::size_t r = 0; r < 31; ++r) {
    for (const auto& order : orders) {
      if (std::find(expected.begin(), expected.end(), order[r]) == expected.end()) expected.push_back(order[r]);
    }
  }
  for (const int pages : {1, 2, 7, 31}) {
    const auto found = search(shape, world.head(), {}, {q.view(), nullptr, 0, 16, 512}, {.pages = pages, .interleave = true});
    CHECK(found.pages == std::vector<std::int32_t>(expected.begin(), expected.begin() + pages));
  }
}

TEST_CASE("among equal keys a beam follows the lowest positions, level by level") {
  const dci_shape shape{.block = 64, .rank = ranking::best_member, .first_promotion = 300, .promotion = 300};
  constexpr std::int32_t tokens = 1024, breadth = 2;
  dci_world<float> world(shape, 16, 16, tokens, 32);
  for (int t = 0; t < tokens; ++t) {
    for (int d = 0; d < 16; ++d) world.set_key(t, d, static_cast<float>(t % 7 == d ? 2 : 1));
  }
  world.index(0, tokens / 64);
  dci_lists lists;
  lists.sync(world.head(), 0, tokens);
  std::int64_t looked_at = 0;
  std::vector<std::int32_t> kept;
  for (int level = most_dci_level; level >= 0; --level) {
    std::vector<std::int32_t> seen;
    for (std::int32_t t = 32; t < tokens; ++t) {
      const std::int32_t parent = world.head().links_of(t / 16)[t % 16];
      const bool follows = parent == no_parent || std::find(kept.begin(), kept.end(), parent) != kept.end();
      if (level_of(shape, t) == level && follows) seen.push_back(t);
    }
    looked_at += static_cast<std::int64_t>(seen.size());
    kept.assign(seen.begin(), seen.begin() + std::min<std::ptrdiff_t>(std::ssize(seen), level == 1 ? breadth : breadth * upper_breadth));
  }
  const std::vector<float> zero(16);
  const page_query query{tensor_view<const float, 2>(zero.data(), 1, 16), nullptr, 0, 32, tokens};
  CHECK(search(shape, world.head(), lists.cells(), query, {.beam = breadth}).result.keys == looked_at);
}

TEST_CASE("spread finds the page of one token that its mean hides") {
  const dci_shape shape{.block = 256, .pack = dci_shape::packing::positional};
  dci_world<bf16> world(shape, 16, 64, 1024, 0);
  for (int t = 0; t < 1024; ++t) {
    for (int d = 0; d < 64; ++d) world.set_key(t, d, d != 5 ? 0 : t == 331 ? 6.0f : t < 160 ? .5f : 0.0f);  // ten pages of .5
  }
  world.index(0, 4);
  std::vector<float> q(64);
  q[5] = 10;
  const page_query query{tensor_view<const float, 2>(q.data(), 1, 64), nullptr, 0, 0, 1024};
  const found_pages with = search(shape, world.head(), {}, query, {.pages = 5, .probes = 5});
  const found_pages without = search(shape, world.head(), {}, query, {.pages = 5, .probes = 5, .spread = 0});
  CHECK(with.pages.front() == 331 / 16);
  CHECK(std::find(without.pages.begin(), without.pages.end(), 331 / 16) == without.pages.end());
  CHECK(with.result == page_search_result{5, 80, 64});
}

TEST_CASE("pages are looked at while the next one promises more than what was found") {
  const dci_shape shape{.block = 256, .pack = dci_shape::packing::positional};
  dci_world<bf16> world(shape, 16, 64, 1024, 0);
  for (int t = 0; t < 1024; ++t) {
    for (int d = 0; d < 64; ++d) world.set_key(t, d, 0);
    if (t < 16) world.set_key(t, 5, .4f);
    if (t < 16) world.set_key(t, 7, t % 2 == 0 ? 3.0f : -3.0f);          // promises what it does not hold
  }
  world.set_key(331, 5, 4);
  world.index(0, 4);
  std::vector<float> q(64);
  q[5] = 100;
  const page_query query{tensor_view<const float, 2>(q.data(), 1, 64), nullptr, 0, 0, 1024};
  CHECK(search(shape, world.head(), {}, query, {.pages = 1, .probes = 1}).pages.front() == 0);
  const found_pages found = search(shape, world.head(), {}, query, {.pages = 1});
  CHECK(found.pages.front() == 331 / 16);
  CHECK(found.result.keys == 16 + 4 * 16);                              // one page, then four more, then nothing promises anything
  for (const float none : {quiet_nan, -infinity}) {
    const found_pages same = search(shape, world.head(), {}, {query.queries, &none, 0, 0, 1024}, {.pages = 1});
    CHECK(same.pages == found.pages);
    CHECK(same.result == found.result);
  }
}

TEST_CASE("of many pages a sixtieth is looked at before promises count") {
  const dci_shape shape{.block = 256, .pack = dci_shape::packing::positional};
  constexpr std::int64_t tokens = 16384;
  dci_world<bf16> world(shape, 16, 8, tokens, 0);
  for (int t = 0; t < tokens; ++t) {
    for (int d = 0; d < 8; ++d) world.set_key(t, d, d == 3 && t / 16 == 700 ? 3.0f : 0.0f);
  }
  world.index(0, tokens / 256);
  std::vector<float> q(8);
  q[3] = 50;
  const page_query query{tensor_view<const float, 2>(q.data(), 1, 8), nullptr, 0, 0, tokens};
  CHECK(first_probes(512, 12) == 12);
  CHECK(first_probes(8192, 12) == 128);
  const found_pages found = search(shape, world.head(), {}, query, {.pages = 2});
  CHECK(found.pages.front() == 700);
  CHECK(found.result == page_search_result{2, 8 * 16, 1024});
  CHECK(search(shape, world.head(), {}, query, {.pages = 60}).result.keys == 60 * 16);
}

TEST_CASE("tokens of pages: members that can be found, ascending") {
  const dci_shape shape{.block = 512};
  dci_world<half> world(shape, 16, 24, 1024, 32);
  for (const int t : {40, 41, 700}) world.set_key(t, 1, infinity);
  world.index(0, 2);
  std::vector<std::int32_t> pages, ids(1024), expected;
  for (std::int32_t j = 63; j >= 2; --j) pages.push_back(j);
  const std::int64_t count = tokens_of(shape, world.head(), pages, ids.data());
  ids.resize(static_cast<std::size_t>(count));
  for (std::int32_t t = 32; t < 1024; ++t) {
    if (t != 40 && t != 41 && t != 700) expected.push_back(t);
  }
  CHECK(ids == expected);
  CHECK(tokens_of(shape, world.head(), {}, ids.data()) == 0);
}

TEST_CASE("nothing to find: empty zones, no page asked for, only keys that cannot be found, queries with NaN") {
  const dci_shape shape{.block = 64, .rank = ranking::best_member};
  dci_world<float> world(shape, 16, 16, 128, 16);
  group_of_queries q(2, 16, 1);
  dci_lists lists;
  CHECK(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 0, 0}, {}).result == page_search_result{});
  world.index(0, 2);
  lists.sync(world.head(), 0, 128);
  CHECK(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 128}, {.pages = 0}).result == page_search_result{});
  CHECK(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 128}, {}).result.found == 7);
  q.values[3] = quiet_nan;
  CHECK(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 128}, {}).result.found == 0);
  q.values[3] = 1;
  for (std::int64_t t = 0; t < 128; ++t) world.set_key(t, 2, quiet_nan);
  world.index(0, 2);
  lists.sync(world.head(), 0, 128);
  CHECK(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 128}, {}).result.found == 0);
}

TEST_CASE("misuse is refused") {
  const dci_shape shape{.block = 64, .rank = ranking::best_member};
  dci_world<float> world(shape, 16, 16, 128, 16);
  world.index(0, 2);
  dci_lists lists;
  lists.sync(world.head(), 0, 64);
  const group_of_queries q(2, 16, 1), wide(2, 17, 1);
  CHECK_THROWS_AS(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 128}, {}), usage_error);  // beyond the lists
  CHECK_THROWS_AS(search(shape, world.head(), lists.cells(), {wide.view(), nullptr, 0, 16, 64}, {}), usage_error);
  CHECK_THROWS_AS(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 8, 64}, {}), usage_error);
  CHECK_THROWS_AS(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 48}, {}), usage_error);
  CHECK_THROWS_AS(search(shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 64, 0}, {}), usage_error);
  std::vector<std::int32_t> out(12);
  CHECK_THROWS_AS(search_pages(host{}, shape, world.head(), lists.cells(), {q.view(), nullptr, 0, 16, 64}, {}, out, {}), usage_error);
}
