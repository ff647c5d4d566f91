// Slots of far pages against a list in the order of selection.

#include <kvx/layout/host/hot_pages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <random>
#include <set>

TEST_CASE("hot_pages: the page that was selected longest ago leaves, dropped ones first") {
  std::mt19937_64 random(5);
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  for (const std::int32_t slots : {1, 2, 3, 8, 129}) {
    kvx::hot_pages hot(slots);
    std::map<std::int64_t, std::int32_t> slot_of;
    std::list<std::int64_t> order;  // keys, selected longest ago first
    std::int64_t evicted = 0, dropped = 0;
    for (int i = 0; i < 4000; ++i) {
      const std::int64_t key = below(static_cast<std::uint64_t>(3 * slots + 1)) << (i % 3 == 0 ? 33 : 0);
      CAPTURE(slots);
      CAPTURE(i);
      if (below(9) == 0) {
        hot.drop(key);
        dropped += static_cast<std::int64_t>(slot_of.erase(key));
        order.remove(key);
      } else if (const std::int32_t found = hot.find(key); slot_of.count(key) != 0) {
        REQUIRE(found == slot_of[key]);
        hot.select(found);
        order.remove(key);
        order.push_back(key);
      } else {
        REQUIRE(found == -1);
        const std::int32_t slot = hot.take(key);
        if (order.size() == static_cast<std::size_t>(slots)) {
          REQUIRE(slot == slot_of[order.front()]);
          slot_of.erase(order.front());
          order.pop_front();
          ++evicted;
        }
        slot_of[key] = slot;
        order.push_back(key);
      }
      std::set<std::int32_t> used;
      for (const auto& [k, s] : slot_of) used.insert(s);
      REQUIRE(used.size() == slot_of.size());
      if (i % 64 == 0) {
        for (const auto& [k, s] : slot_of) REQUIRE(hot.find(k) == s);
      }
    }
    CHECK(evicted > 100);
    CHECK(dropped > 0);
  }
}
