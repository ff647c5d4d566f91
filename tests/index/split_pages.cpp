// Pages that grow by splits: a bijection at any time, ranges in order, dirty where something changed, whatever the pieces.

#include <support/dci_tree.hpp>

#include <kvx/core/math.hpp>
#include <kvx/index/host/split_pages.hpp>
#include <kvx/index/split_pages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// Tokens as they come.
struct arrivals {
  std::vector<std::int32_t> cells;
  std::vector<float> values;

  explicit arrivals(std::size_t n, unsigned seed = 1) {
    std::mt19937 random(seed);
    for (std::size_t t = 0; t < n; ++t) {
      const std::uint32_t draw = static_cast<std::uint32_t>(random());
      cells.push_back(draw % 3 == 0 ? no_parent : static_cast<std::int32_t>(draw % 5));
      values.push_back(draw % 97 == 0 ? quiet_nan : static_cast<float>(random() % 40));  // many are equal
    }
  }
  void insert_into(split_pages& pages, std::int64_t to) const {
    const auto first = static_cast<std::size_t>(pages.tokens()), n = static_cast<std::size_t>(to) - first;
    pages.insert(std::span(cells).subspan(first, n), std::span(values).subspan(first, n));
  }
};

using contents = std::vector<std::vector<std::int32_t>>;
contents contents_of(const split_pages& pages) {
  contents all;
  for (std::int64_t j = 0; j < pages.pages(); ++j) all.emplace_back(pages.members(j).begin(), pages.members(j).end());
  return all;
}

void check_laws(const split_pages& pages, const arrivals& of, int P) {
  std::int64_t placed = 0, empty = 0;
  std::map<std::int32_t, std::vector<std::pair<float, float>>> ranges;  // of the pages of each cell
  for (std::int64_t j = 0; j < pages.pages(); ++j) {
    const auto members = pages.members(j);
    CHECK(std::ssize(members) <= P);
    placed += std::ssize(members);
    empty += members.empty() ? 1 : 0;
    if (members.empty()) continue;
    float low = infinity, high = -infinity;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto t = static_cast<std::size_t>(members[i]);
      CHECK(pages.place_of(members[i]) == page_slot{static_cast<std::int32_t>(j), static_cast<std::int32_t>(i)});
      CHECK(of.cells[t] == of.cells[static_cast<std::size_t>(members[0])]);
      low = std::min(low, of.values[t]);
      high = std::max(high, of.values[t]);
    }
    ranges[of.cells[static_cast<std::size_t>(members[0])]].emplace_back(low, high);
  }
  CHECK(empty == pages.free_pages());
  for (auto& [cell, all] : ranges) {
    std::sort(all.begin(), all.end());
    for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i - 1].second <= all[i].first);
  }
  std::int64_t held = 0;
  for (std::int64_t t = 0; t < pages.tokens(); ++t) {
    const bool lost = of.values[static_cast<std::size_t>(t)] != of.values[static_cast<std::size_t>(t)];
    CHECK((pages.place_of(t).page < 0) == lost);
    held += lost ? 0 : 1;
  }
  CHECK(held == placed);
}

}  // namespace

TEST_CASE("every token once, ranges in order, dirty where members changed, through any growth and cuts") {
  for (const int P : {2, 5, 16}) {
    std::mt19937 random(static_cast<unsigned>(P));
    const arrivals of(2000);
    split_pages pages(P);
    for (int step = 0; step < 80; ++step) {
      const contents before = contents_of(pages);
      for (std::int64_t j = 0; j < pages.pages(); ++j) pages.clean(j);
      const bool cut = random() % 3 == 0;
      if (cut) {
        pages.truncate(static_cast<std::int64_t>(random() % static_cast<unsigned>(pages.tokens() + 1)));
      } else {
        of.insert_into(pages, std::min<std::int64_t>(2000, pages.tokens() + static_cast<std::int64_t>(random() % 120)));
      }
      check_laws(pages, of, P);
      const contents after = contents_of(pages);
      for (std::size_t j = 0; j < after.size(); ++j) {
        const bool changed = j >= before.size() || before[j] != after[j];
        if (changed) CHECK(pages.is_dirty(static_cast<std::int64_t>(j)));
        // one that takes tokens may lose them again to a page that it is cut from
        if (!changed && !after[j].empty() && cut) CHECK(!pages.is_dirty(static_cast<std::int64_t>(j)));
      }
    }
  }
}

TEST_CASE("a full page leaves half of its members, the lower ones, and a page that is free again is used first") {
  split_pages pages(4);
  const std::vector<std::int32_t> cells(4, 7);
  pages.insert(cells, std::vector<float>{5, 1, 3, 1});
  CHECK(contents_of(pages) == contents{{0, 1, 2, 3}});
  pages.insert(std::vector<std::int32_t>{7}, std::vector<float>{2});
  CHECK(contents_of(pages) == contents{{1, 3, 4}, {2, 0}});
  pages.insert(std::vector<std::int32_t>{9}, std::vector<float>{2});
  CHECK(pages.place_of(5) == page_slot{2, 0});
  pages.truncate(5);
  CHECK(pages.free_pages() == 1);
  pages.insert(std::vector<std::int32_t>{11}, std::vector<float>{-2});
  CHECK(pages.place_of(5) == page_slot{2, 0});
  CHECK(pages.pages() == 3);
}

TEST_CASE("pieces do not matter, and a copy is its own") {
  const arrivals of(700, 3);
  split_pages whole(16), pieces(16);
  of.insert_into(whole, 700);
  for (std::int64_t to = 0; to < 700; to = std::min<std::int64_t>(700, to + 13))
    of.insert_into(pieces, std::min<std::int64_t>(700, to + 13));
  CHECK(contents_of(whole) == contents_of(pieces));
  split_pages fork = whole;
  const contents before = contents_of(whole);
  fork.truncate(100);
  of.insert_into(fork, 500);
  CHECK(contents_of(whole) == before);
}

TEST_CASE("tokens of a tree: sinks and keys that are never found are in no page, all others in those of their parents' cells") {
  const dci_shape shape{.block = 16, .rank = dci_shape::ranking::best_member, .first_promotion = 120};
  constexpr std::int64_t tokens = 640;
  dci_world<bf16> world(shape, 16, 24, tokens, 32);
  world.set_key(77, 0, quiet_nan);
  world.index(0, tokens / 16);
  split_pages pages(16), pieces(16);
  grow(host{}, shape, world.head(), tokens, pages);
  for (std::int64_t to = 16; to <= tokens; to += 16) grow(host{}, shape, world.head(), to, pieces);
  CHECK(contents_of(pages) == contents_of(pieces));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int32_t parent = world.head().links_of(t / 16)[t % 16], page = pages.place_of(t).page;
    CHECK((page < 0) == (parent == not_in_tree));
    if (page < 0) continue;
    const std::int32_t first = pages.members(page)[0];
    CHECK(world.head().links_of(first / 16)[first % 16] == parent);
  }
  CHECK_THROWS_AS(grow(host{}, shape, world.head(), 600, pages), usage_error);  // less than are held, and no whole pages
  CHECK_THROWS_AS(grow(host{}, {.block = 64, .rank = shape.rank}, world.head(), tokens, pages), usage_error);
}

TEST_CASE("misuse is refused") {
  CHECK_THROWS_AS(split_pages(1), usage_error);
  split_pages pages(4);
  CHECK_THROWS_AS(pages.insert(std::vector<std::int32_t>{1}, {}), usage_error);
  CHECK_THROWS_AS(pages.truncate(1), usage_error);
  CHECK(pages.tokens() == 0);
}
