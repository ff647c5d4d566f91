// Page tables that grow, shrink and leave windows behind keep exactly the rows that some later query can see.

#include <kvx/layout/page_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace kvx;

/// Whether a query at `position` sees token t <= position: the last `window` tokens, its own included, and the sink.
bool sees(const page_rules& rules, std::int64_t position, std::int64_t t) {
  return rules.window == 0 || t < rules.sink || position - t < rules.window;
}

struct table_of_one {
  page_rules rules;
  page_pool pool{4000};
  page_table table;
  std::int64_t length = 0;

  void append(std::int64_t tokens) {
    length += tokens;
    table.units.reserve(static_cast<std::size_t>(rules.units(length)));
    table.pages.reserve(static_cast<std::size_t>(rules.pages(length)));
    grow(pool, rules, table, length);
    leave_window(pool, rules, table, length);
  }
  void cut(std::int64_t tokens) {
    length = tokens;
    shrink(pool, rules, table, tokens);
  }
  bool has(std::int64_t t) const { return table.pages[static_cast<std::size_t>(t / rules.page_tokens)] >= 0; }

  /// Every row that a query behind n tokens sees.
  bool complete(std::int64_t n) const {
    for (std::int64_t t = 0; t < n; ++t) {
      if (sees(rules, n, t) && !has(t)) return false;
    }
    return true;
  }

  void check_consistent() const {
    REQUIRE(static_cast<std::int64_t>(table.pages.size()) == rules.pages(length));
    REQUIRE(static_cast<std::int64_t>(table.units.size()) == rules.units(length));
    std::int64_t held = 0;
    for (std::size_t j = 0; j < table.pages.size(); ++j) {
      const page_id unit = table.units[j / static_cast<std::size_t>(rules.unit_pages)];
      REQUIRE((table.pages[j] >= 0) == static_cast<bool>(unit));
      if (!unit) continue;
      REQUIRE(pool.holds(unit));
      REQUIRE(table.pages[j] == unit.index * rules.unit_pages + static_cast<std::int64_t>(j) % rules.unit_pages);
    }
    for (const page_id unit : table.units) held += static_cast<bool>(unit);
    REQUIRE(pool.used() == held);
  }
};

}  // namespace

TEST_CASE("after any mix of appends and cuts a window holds what queries see, and not a page more than rollback asks for") {
  std::mt19937 random(5);
  for (int run = 0; run < 300; ++run) {
    table_of_one x;
    x.rules.page_tokens = std::int64_t{1} << random() % 5;
    x.rules.window = 1 + static_cast<std::int64_t>(random() % 20);
    x.rules.sink = static_cast<std::int64_t>(random() % 3 == 0 ? 0 : random() % 9);
    x.rules.rollback = static_cast<std::int64_t>(random() % 2 == 0 ? 0 : random() % 12);
    std::int64_t peak = 0;
    CAPTURE(x.rules.page_tokens);
    CAPTURE(x.rules.window);
    CAPTURE(x.rules.sink);
    CAPTURE(x.rules.rollback);
    for (int i = 0; i < 40; ++i) {
      if (random() % 4 != 0 || x.length == 0) {
        x.append(1 + static_cast<std::int64_t>(random() % (random() % 3 == 0 ? 30 : 3)));
        peak = std::max(peak, x.length);
        // Exactly the pages with a token that a query behind `length - rollback` tokens or more can see are left.
        const std::int64_t shortest = std::max<std::int64_t>(0, x.length - x.rules.rollback);
        if (peak == x.length) {
          for (std::int64_t page = 0; page < x.rules.pages(x.length); ++page) {
            bool seen = (page + 1) * x.rules.page_tokens > x.length;
            for (std::int64_t t = page * x.rules.page_tokens; t < std::min((page + 1) * x.rules.page_tokens, x.length); ++t)
              for (std::int64_t position = shortest; position <= x.length; ++position) seen = seen || sees(x.rules, position, t);
            REQUIRE(x.has(page * x.rules.page_tokens) == seen);
          }
        }
      } else {
        const std::int64_t to = static_cast<std::int64_t>(random() % static_cast<unsigned>(x.length + 1));
        const bool allowed = to <= x.rules.sink || to >= shortest_cut(x.rules, x.table);
        if (to >= peak - x.rules.rollback) REQUIRE(allowed);
        if (!allowed) continue;
        x.cut(to);
        if (to == 0) peak = 0;
      }
      x.check_consistent();
      REQUIRE(x.complete(x.length));
      for (std::int64_t n = 0; n <= x.length; ++n) {
        if (n <= x.rules.sink || n >= shortest_cut(x.rules, x.table)) REQUIRE(x.complete(n));
      }
    }
    x.cut(0);
    CHECK(x.pool.used() == 0);
    CHECK(x.table.first_kept == 0);
  }
}

TEST_CASE("without a window nothing is left behind") {
  table_of_one x;
  x.rules.page_tokens = 4;
  for (int i = 0; i < 50; ++i) {
    x.append(3);
    x.check_consistent();
    CHECK(x.pool.used() == ceil_div(x.length, 4));
    CHECK(shortest_cut(x.rules, x.table) == 0);
  }
}

TEST_CASE("a slab is one unit of consecutive pages, and windows leave it whole") {
  for (const std::int64_t unit_pages : {1, 5}) {
    table_of_one x;
    x.rules = {.page_tokens = 16, .unit_pages = unit_pages, .window = 3, .grows = false};
    const std::int64_t all = 16 * unit_pages;
    for (std::int64_t n = 1; n <= all; ++n) {
      x.append(1);
      x.check_consistent();
      CHECK(x.pool.used() == 1);
      CHECK(shortest_cut(x.rules, x.table) == 0);
    }
    x.cut(1);
    x.check_consistent();
    x.cut(0);
    CHECK(x.pool.used() == 0);
  }
}

TEST_CASE("a shared page that is partly filled must be copied; a full one, or an own one, need not") {
  table_of_one x;
  x.rules.page_tokens = 4;
  x.append(6);
  CHECK_FALSE(must_copy(x.pool, x.rules, x.table, 6));
  x.pool.retain(x.table.units[0]);
  CHECK_FALSE(must_copy(x.pool, x.rules, x.table, 6));
  x.pool.retain(x.table.units[1]);
  CHECK(must_copy(x.pool, x.rules, x.table, 6));
  x.append(2);
  CHECK_FALSE(must_copy(x.pool, x.rules, x.table, 8));
}
