// The columns of semantic pages are what their definition says, whatever the pieces; lists follow them through any cut.

#include <support/dci_tree.hpp>

#include <kvx/index/dci_lists.hpp>
#include <kvx/index/host/dci_tree.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

using packing = dci_shape::packing;

/// Metrics of some blocks with their values.
struct metrics_of {
  std::vector<std::vector<float>> values;
  std::vector<query_metric> all;

  metrics_of(int dim, std::int64_t blocks, bool full, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t b = 0; b < blocks; ++b) {
      query_moments moments(dim, full);
      std::vector<float> q(static_cast<std::size_t>(dim));
      for (int i = 0; i < 20; ++i) {
        for (int d = 0; d < dim; ++d) q[static_cast<std::size_t>(d)] = normal(random) / static_cast<float>(1 + d);
        moments.add(q.data());
      }
      auto& to = values.emplace_back(static_cast<std::size_t>(full ? dim * dim : dim));
      all.push_back(moments.write(to.data()));
    }
  }
};

/// Every law of the columns of whole blocks, and that they are the plain ones.
template <class E>
void check_columns(const dci_shape& shape, const dci_world<E>& world, std::int64_t tokens, const std::vector<query_metric>& metrics = {},
                   int h = 0) {
  const dci_head<E> of = world.head(h);
  const std::int64_t P = of.rows.page_tokens;
  const plain_pages plain = plain_index(shape, of, tokens, metrics);
  std::set<std::int32_t> seen;
  for (std::int64_t j = 0; j < tokens / P; ++j) {
    const packed_page page = of.packed(shape, j);
    const std::int64_t block = j * P / shape.block * shape.block;
    std::vector<std::int32_t> members;
    for (int i = 0; i < P; ++i) {
      const auto t = static_cast<std::int32_t>(block + page.member(i));
      CHECK(seen.insert(t).second);                                     // each token once
      CHECK(of.semantic_page(shape, t) == j);                           // and its place leads back
      if (i < page.count()) members.push_back(t);
    }
    CAPTURE(j);
    CHECK(members == plain.members[static_cast<std::size_t>(j)]);
    CHECK(page.spread() == plain.spreads[static_cast<std::size_t>(j)]);
    for (int d = 0; d < of.rows.key_dim && keeps_means(shape) && !members.empty(); ++d) {
      double sum = 0;
      for (const std::int32_t t : members) sum += static_cast<double>(to_float(of.key(t)[d]));
      CHECK(of.mean_of(j)[d] == round_to<bf16>(static_cast<float>(sum / static_cast<double>(members.size()))));
    }
    if (!keeps_links(shape)) continue;
    CHECK(page.radius() == plain.radius[static_cast<std::size_t>(block / shape.block)]);
    for (std::int64_t slot = 0; slot < P; ++slot) {
      const std::int64_t t = j * P + slot;
      const std::int32_t parent = of.links_of(j)[slot];
      CAPTURE(t);
      CHECK(parent == plain.parents[static_cast<std::size_t>(t)]);
      if (parent < 0) continue;
      CHECK(level_of(shape, parent) == level_of(shape, t) + 1);
      CHECK(parent < block + shape.block);
    }
  }
  CHECK(static_cast<std::int64_t>(seen.size()) == tokens);
}

/// What a walk over the lists finds: children of the root, then of each token.
std::vector<std::vector<std::int32_t>> walked(const dci_cells& cells) {
  std::vector<std::vector<std::int32_t>> all(static_cast<std::size_t>(cells.tokens) + 1);
  const auto walk = [&](std::int32_t t, auto& into) {
    for (; t >= 0; t = cells.sibling[t]) into.push_back(t);
  };
  walk(cells.root, all[0]);
  for (std::int64_t t = 0; t < cells.tokens; ++t) walk(cells.child[t], all[static_cast<std::size_t>(t) + 1]);
  return all;
}

}  // namespace

TEST_CASE("levels shrink by first_promotion, then by promotion, alike among early and late positions") {
  constexpr std::int64_t count = 1 << 18;
  for (const dci_shape& shape : {dci_shape{}, dci_shape{.first_promotion = 10}, dci_shape{.first_promotion = 500, .promotion = 30}}) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1} << 40}) {
      std::int64_t reach[4] = {};
      for (std::int64_t t = first; t < first + count; ++t) {
        for (int level = 1; level <= std::min(level_of(shape, t), 3); ++level) ++reach[level];
      }
      double wanted = static_cast<double>(count);
      for (int level = 1; level <= 3; ++level) {
        wanted *= (level == 1 ? shape.first_promotion : shape.promotion) / 1000.0;
        CAPTURE(level);
        CHECK(std::abs(static_cast<double>(reach[level]) - wanted) < 5 * std::sqrt(wanted));
      }
    }
  }
}

TEST_CASE_TEMPLATE("columns are the plain ones, for every packing and dim", E, float, half, bf16) {
  for (const int dim : {8, 46, 64, 129}) {
    for (const packing pack : {packing::positional, packing::projection, packing::greedy, packing::bisection}) {
      for (const int metric : {0, 1, 2}) {
        if (metric != 0 && (pack == packing::positional || dim == 129)) continue;
        const auto rank = dim == 46 ? dci_shape::ranking::mean_then_member : dci_shape::ranking::best_member;
        const dci_shape shape{.block = 64, .pack = pack, .rank = rank, .first_promotion = 120, .promotion = 300};
        dci_world<E> world(shape, 8, dim, 256, 16);
        const metrics_of metrics(dim, 4, metric == 2, 5);
        const auto used = metric == 0 ? std::vector<query_metric>() : metrics.all;
        CAPTURE(dim);
        CAPTURE(static_cast<int>(pack));
        CAPTURE(metric);
        world.index(0, 4, used);
        check_columns(shape, world, 256, used);
      }
    }
  }
}

TEST_CASE("blocks of one and two bytes, pages of 1 to 64 tokens, heads, sinks of none to several blocks") {
  struct shapes {
    int block, page;
    std::int64_t sink;
  };
  for (const shapes s : {shapes{256, 16, 32}, {256, 64, 0}, {512, 16, 16}, {64, 1, 3}, {32, 32, 96}, {96, 16, 208}}) {
    const dci_shape shape{.block = s.block, .rank = dci_shape::ranking::best_member, .first_promotion = 60};
    dci_world<bf16> world(shape, s.page, 24, s.block * 2 < 300 ? 3 * s.block : 2 * s.block, s.sink, 2, 9);
    const std::int64_t blocks = s.block * 2 < 300 ? 3 : 2;
    CAPTURE(s.block);
    CAPTURE(s.page);
    for (int h = 0; h < 2; ++h) {
      world.index(0, blocks, {}, h);
      check_columns(shape, world, blocks * s.block, {}, h);
    }
  }
}

TEST_CASE("indexing in any pieces leaves the same bytes") {
  for (const auto rank : {dci_shape::ranking::best_member, dci_shape::ranking::mean_then_member, dci_shape::ranking::two_level_means}) {
    const dci_shape shape{.block = 32, .rank = rank, .first_promotion = 200, .promotion = 300};
    const auto bytes = [&](const std::vector<std::int64_t>& pieces) {
      dci_world<half> world(shape, 8, 40, 320, 8);
      for (int t = 0; t < 320; ++t) world.set_key(t, 3, static_cast<float>(t) / 16);  // norms grow: the radius moves
      for (int t = 9, broken = 0; broken < 6; ++t) {                     // promoted ones too, which later blocks must not link to
        if (t % 50 != 0 && level_of(shape, t) == 0) continue;
        world.set_key(t, 0, infinity);
        ++broken;
      }
      std::int64_t first = 0;
      for (const std::int64_t n : pieces) {
        world.index(first, n);
        first += n;
      }
      CHECK(first == 10);
      return world.columns();
    };
    const auto whole = bytes({10});
    CHECK(bytes({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}) == whole);
    CHECK(bytes({3, 0, 7}) == whole);
    CHECK(bytes({9, 1}) == whole);
  }
}

TEST_CASE("keys that no search may find: NaN, infinite, too long; and equal and zero keys") {
  for (const packing pack : {packing::projection, packing::greedy, packing::bisection}) {
    const auto rank = pack == packing::greedy ? dci_shape::ranking::mean_then_member : dci_shape::ranking::best_member;
    const dci_shape shape{.block = 64, .pack = pack, .rank = rank, .first_promotion = 200};
    for (const int kind : {0, 1, 2, 3}) {
      dci_world<float> world(shape, 8, 20, 192, 8);
      std::mt19937 random(4);
      for (std::int64_t t = 0; t < 192; ++t) {
        if (kind == 0 && random() % 3 == 0) world.set_key(t, static_cast<int>(random() % 20), random() % 2 == 0 ? quiet_nan : -infinity);
        if (kind == 0 && t == 40) world.set_key(t, 0, 0x1p61f);
        for (int d = 0; d < 20 && kind != 0; ++d) world.set_key(t, d, kind == 1 ? 1.5f : kind == 2 ? 0.0f : quiet_nan);
      }
      CAPTURE(kind);
      CAPTURE(static_cast<int>(pack));
      world.index(0, 3);
      check_columns(shape, world, 192);
    }
  }
}

TEST_CASE("near ties are decided in double") {
  const dci_shape shape{.block = 64, .rank = dci_shape::ranking::best_member, .first_promotion = 300, .promotion = 1};
  dci_world<float> world(shape, 8, 64, 256, 0);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> base(64);
  for (float& x : base) x = normal(random);
  for (std::int64_t t = 0; t < 256; ++t) {
    for (int d = 0; d < 64; ++d) {
      const float x = base[static_cast<std::size_t>(d)];
      world.set_key(t, d, random() % 16 == 0 ? std::nextafter(x, 10.0f) : x);
    }
  }
  world.index(0, 4);
  check_columns(shape, world, 256);
}

TEST_CASE("lists follow growth and cuts as if they were built anew; copies are their own") {
  const dci_shape shape{.block = 32, .rank = dci_shape::ranking::best_member, .first_promotion = 200, .promotion = 300};
  dci_world<float> world(shape, 8, 16, 640, 16);
  world.index(0, 20);
  const auto anew = [&](std::int64_t tokens) {
    dci_lists lists;
    lists.sync(world.head(), 0, tokens);
    return walked(lists.cells());
  };
  dci_lists lists;
  std::mt19937 random(8);
  for (int step = 0; step < 60; ++step) {
    const std::int64_t to = static_cast<std::int64_t>(random() % 21), kept = static_cast<std::int64_t>(random() % 21);
    const std::int64_t unchanged = std::min({kept, to, lists.tokens() / 32}), cut = unchanged * 32;
    for (std::int64_t t = cut; t < 640; ++t) world.set_key(t, 0, static_cast<float>(random() % 7));  // other tokens behind the cut
    world.index(unchanged, 20 - unchanged);
    const dci_lists before = lists;
    const auto old = walked(before.cells());
    lists.sync(world.head(), cut, to * 32);
    CHECK(walked(lists.cells()) == anew(to * 32));
    CHECK(walked(before.cells()) == old);
  }
  CHECK_THROWS_AS(lists.sync(world.head(), lists.tokens() + 32, 640 + 64), usage_error);
}

TEST_CASE("misuse is refused before anything is written") {
  const dci_shape shape{.block = 64};
  dci_world<float> world(shape, 16, 16, 128, 16);
  const auto before = world.columns();
  alignas(64) std::byte small[64] = {};
  const auto call = [&](const dci_shape& s, std::int64_t first, std::int64_t count, const std::vector<query_metric>& metrics,
                        std::int64_t sink) {
    dci_head<float> of = world.head();
    of.sink = sink;
    index_blocks(host{}, s, of, first, count, metrics, small);
  };
  CHECK_THROWS_AS(call({.block = 60}, 0, 1, {}, 16), usage_error);
  CHECK_THROWS_AS(call({.block = 1 << 17}, 0, 1, {}, 16), usage_error);
  CHECK_THROWS_AS(call(shape, 0, 1, {}, 8), usage_error);
  CHECK_THROWS_AS(call(shape, -1, 1, {}, 16), usage_error);
  CHECK_THROWS_AS(call(shape, 0, -1, {}, 16), usage_error);
  CHECK_THROWS_AS(call(shape, 0, 1, {{}, {}}, 16), usage_error);
  CHECK_THROWS_AS(call(shape, 0, 1, {}, 16), usage_error);              // scratch
  CHECK(world.columns() == before);
}
