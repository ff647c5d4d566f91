// The pool against a plain list of users: counts, order, generations.

#include <kvx/layout/page_pool.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

using kvx::page_id;
using kvx::page_pool;

TEST_CASE("new pages come in ascending order, freed ones first, the last freed before the others") {
  page_pool pool(4);
  const page_id a = pool.acquire(), b = pool.acquire(), c = pool.acquire();
  CHECK(a.index == 0);
  CHECK(b.index == 1);
  CHECK(c.index == 2);
  pool.release(a);
  pool.release(c);
  CHECK(pool.acquire().index == 2);
  CHECK(pool.acquire().index == 0);
  CHECK(pool.acquire().index == 3);
  CHECK(pool.free() == 0);
}

TEST_CASE("an id is stale from the moment that its page is free, and for ever") {
  page_pool pool(1);
  const page_id first = pool.acquire();
  CHECK(pool.holds(first));
  pool.release(first);
  CHECK_FALSE(pool.holds(first));
  const page_id second = pool.acquire();
  CHECK(second.index == first.index);
  CHECK(second != first);
  CHECK(pool.holds(second));
  CHECK_FALSE(pool.holds(first));
}

TEST_CASE("ids of no page of the pool are held by nobody") {
  page_pool pool(2);
  pool.acquire();
  CHECK_FALSE(pool.holds({}));
  CHECK_FALSE(pool.holds({-1, 0}));
  CHECK_FALSE(pool.holds({1, 0}));  // never given out
  CHECK_FALSE(pool.holds({2, 0}));
  CHECK_FALSE(pool.holds({0, 1}));
  CHECK_FALSE(static_cast<bool>(page_id{}));
  CHECK(static_cast<bool>(page_id{0, 0}));
}

TEST_CASE("a page is free when its last user goes, not before") {
  page_pool pool(3);
  const page_id p = pool.acquire();
  pool.retain(p);
  pool.retain(p);
  CHECK(pool.shared() == 1);
  pool.release(p);
  CHECK(pool.is_shared(p));
  CHECK(pool.used() == 1);
  pool.release(p);
  CHECK_FALSE(pool.is_shared(p));
  CHECK(pool.shared() == 0);
  CHECK(pool.used() == 1);
  pool.release(p);
  CHECK(pool.used() == 0);
  CHECK(pool.free() == 3);
}

TEST_CASE("random use counts as a list of users does") {
  std::mt19937 random(11);
  page_pool pool(23), twin(23);
  std::vector<page_id> uses;  // one entry for each use of a page
  for (int i = 0; i < 20000; ++i) {
    CAPTURE(i);
    const std::size_t any = uses.empty() ? 0 : random() % uses.size();
    const unsigned dice = random() % 8;
    if (dice < 3 && pool.free() > 0) {
      const page_id p = pool.acquire();
      REQUIRE(std::find(uses.begin(), uses.end(), p) == uses.end());
      REQUIRE(twin.acquire() == p);  // the same calls give the same pages
      uses.push_back(p);
    } else if (dice < 5 && !uses.empty()) {
      pool.retain(uses[any]);
      twin.retain(uses[any]);
      uses.push_back(uses[any]);
    } else if (!uses.empty()) {
      const page_id p = uses[any];
      pool.release(p);
      twin.release(p);
      uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(any));
      REQUIRE(pool.holds(p) == (std::find(uses.begin(), uses.end(), p) != uses.end()));
    }
    std::array<int, 23> users{};
    for (const page_id p : uses) ++users[static_cast<std::size_t>(p.index)];
    const auto used = std::count_if(users.begin(), users.end(), [](int n) { return n > 0; });
    const auto shared = std::count_if(users.begin(), users.end(), [](int n) { return n > 1; });
    REQUIRE(pool.used() == used);
    REQUIRE(pool.shared() == shared);
    REQUIRE(pool.free() == 23 - used);
  }
}
