// The edge is what its sentence says: the largest multiple of the unit that is at most n - local, at least the sink; the sink below
 // `first`.

#include <kvx/layout/zones.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>

namespace {

/// By trying every multiple.
std::int64_t slow_edge(kvx::zones z, std::int64_t n, std::int64_t block) {
  std::int64_t best = z.sink;
  for (std::int64_t m = 0; m <= n - z.local; m += block) {
    if (m > best && m >= z.first) best = m;
  }
  return best;
}

}  // namespace

TEST_CASE("the edge equals the slow one, never falls, and moves by whole blocks") {
  for (const int sink : {0, 1, 4, 64, 100}) {
    for (const int local : {0, 1, 7, 64, 256}) {
      for (const std::int64_t block : {1, 4, 16, 64}) {
        const kvx::zones z{.sink = sink, .local = local, .first = local == 7 ? 130 : 0, .unit = sink == 1 ? static_cast<int>(block) : 0};
        CAPTURE(sink);
        CAPTURE(local);
        CAPTURE(block);
        std::int64_t last = 0;
        for (std::int64_t n = 0; n < 700; ++n) {
          const std::int64_t e = kvx::edge(z, n, z.unit != 0 ? 1 : block);
          REQUIRE(e == slow_edge(z, n, block));
          REQUIRE(e >= last);
          REQUIRE(e >= sink);
          REQUIRE((e == sink || e % block == 0));
          REQUIRE((e == sink || n - e >= local));
          last = e;
        }
      }
    }
  }
}

TEST_CASE("the edge of very long sequences") {
  constexpr std::int64_t n = (std::int64_t{1} << 40) + 63;
  CHECK(kvx::edge({.sink = 4, .local = 0}, n, 64) == n - 63);
  CHECK(kvx::edge({.sink = 4, .local = 64}, n, 64) == n - 127);
}
