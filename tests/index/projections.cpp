// Composite indices: where tokens stand, whom they bring near, and that without limits they change nothing.

#include <support/dci_tree.hpp>

#include <kvx/index/dci_lists.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/page_search.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t tokens = 1024, sink = 32;
constexpr int dim = 20, group = 3;

struct found_pages {
  std::vector<std::int32_t> pages;
  std::int64_t keys;
};

/// A head in a tree, and a group of queries.
struct world_of_lines {
  dci_shape shape;
  dci_world<bf16> world;
  dci_lists lists;
  std::vector<float> queries;

  explicit world_of_lines(int simple, int composite)
      : shape{.block = 64, .rank = dci_shape::ranking::best_member, .first_promotion = 100, .simple = simple, .composite = composite},
        world(shape, 16, dim, tokens, sink) {
    world.set_key(100, 3, quiet_nan);
    world.index(0, tokens / 64);
    lists.sync(world.head(), 0, tokens);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int i = 0; i < group * dim; ++i) queries.push_back(normal(random));
  }

  found_pages search(const page_search& options) const {
    const tensor_view<const float, 2> q(queries.data(), group, dim);
    const memory_block scratch(std::pmr::new_delete_resource(), search_pages_bytes({16, dim, 8}, group, tokens, options));
    std::fill_n(scratch.data(), scratch.size(), std::byte{0x7f});
    found_pages found{std::vector<std::int32_t>(static_cast<std::size_t>(options.pages)), 0};
    const auto result = search_pages(host{}, shape, world.head(), lists.cells(), {q, nullptr, 0, sink, tokens}, options, found.pages,
                                     {scratch.data(), static_cast<std::size_t>(scratch.size())});
    found.pages.resize(static_cast<std::size_t>(result.found));
    found.keys = result.keys;
    return found;
  }

  /// Where a token and a query stand on line i, from the definition.
  double place(std::int64_t t, int i) const {
    double sum = 0, square = 0;
    const double c = static_cast<double>(world.head().packed(shape, t / 16).radius());
    for (int d = 0; d < dim; ++d) {
      const auto x = static_cast<double>(to_float(world.head().key(t)[d]));
      sum += x * static_cast<double>(line_component(shape.seed, i, d));
      square += x * x;
    }
    return (sum + std::sqrt(c * c - square) * static_cast<double>(line_component(shape.seed, i, dim))) / c;
  }
  double asked(int g, int i) const {
    double sum = 0, square = 0;
    for (int d = 0; d < dim; ++d) {
      const auto x = static_cast<double>(queries[static_cast<std::size_t>(g * dim + d)]);
      sum += x * static_cast<double>(line_component(shape.seed, i, d));
      square += x * x;
    }
    return sum / std::sqrt(square);
  }

  /// Keys that a search with every token in its beam, but for what the composite indices leave out, looks at.
  std::int64_t looked_at(int nearest) const {
    std::int64_t count = 0;
    std::set<std::int64_t> kept;
    for (int level = most_dci_level; level >= 0; --level) {
      std::vector<std::int64_t> children;
      for (std::int64_t t = sink; t < tokens; ++t) {
        const std::int32_t parent = world.head().links_of(t / 16)[t % 16];
        if (parent != not_in_tree && level_of(shape, t) == level && (parent == no_parent || kept.contains(parent))) children.push_back(t);
      }
      std::set<std::int64_t> near;
      for (int l = 0; l < shape.composite; ++l) {
        std::vector<std::pair<double, std::int64_t>> order;
        for (const std::int64_t t : children) {
          double best = 1e300;
          for (int g = 0; g < group; ++g) {
            double most = 0;
            for (int i = l * shape.simple; i < (l + 1) * shape.simple; ++i) most = std::max(most, std::fabs(place(t, i) - asked(g, i)));
            best = std::min(best, most);
          }
          order.emplace_back(best, t);
        }
        std::sort(order.begin(), order.end());
        for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), static_cast<std::size_t>(nearest)); ++i)
          near.insert(order[i].second);
      }
      count += static_cast<std::int64_t>(near.size());
      kept = near;
    }
    return count;
  }
};

}  // namespace

TEST_CASE("an unlimited beam equals brute force for any number of lines, and so do unlimited composite indices") {
  for (const auto& lines : {std::pair{1, 0}, {1, 1}, {2, 1}, {1, 3}, {3, 2}}) {
    const int simple = lines.first, composite = lines.second;
    world_of_lines w(simple, composite);
    CAPTURE(simple);
    CAPTURE(composite);
    const auto tree = w.search({.pages = 20, .beam = 1 << 20});
    const auto wide = w.search({.pages = 20, .beam = 1 << 20, .nearest = static_cast<int>(tokens)});
    w.shape.rank = dci_shape::ranking::coded_member;                      // every token
    const auto all = w.search({.pages = 20});
    CHECK(tree.pages == all.pages);
    CHECK(wide.pages == all.pages);
    CHECK(tree.keys == tokens - sink - 1);
    CHECK(wide.keys == tree.keys);
  }
}

TEST_CASE("tokens stand where the definition puts them, and those of each composite index that stand nearest are looked at") {
  for (const auto& [simple, composite] : {std::pair{1, 1}, {2, 2}, {3, 1}}) {
    const world_of_lines w(simple, composite);
    const int lines = lines_of(w.shape);
    REQUIRE(lines == w.shape.simple * w.shape.composite);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int i = 0; i < lines; ++i) {
        const float place = w.world.head().places_of(t / 16, t % 16, lines)[i];
        if (t < sink || t == 100) {
          CHECK(place != place);
        } else {
          CHECK(std::fabs(static_cast<double>(place) - w.place(t, i)) < 1e-5);
        }
      }
    }
    for (const int nearest : {1, 5, 40, 200}) {
      CAPTURE(nearest);
      CHECK(w.search({.pages = 12, .beam = 1 << 20, .nearest = nearest}).keys == w.looked_at(nearest));
    }
  }
}

TEST_CASE("shapes of too many lines are refused") {
  CHECK(is_valid({.simple = 8, .composite = 8}, 16));
  CHECK(!is_valid({.simple = 8, .composite = 9}, 16));
  CHECK(!is_valid({.simple = 0, .composite = 1}, 16));
  CHECK(!is_valid({.simple = 1, .composite = -1}, 16));
}
