// Rounding of sizes against counting, and products that cannot wrap unseen.

#include <kvx/core/bits.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

TEST_CASE("rounding equals counting up") {
  for (std::int64_t b = 1; b <= 17; ++b) {
    std::int64_t quotient = 0;  // smallest with quotient * b >= a
    for (std::int64_t a = 0; a <= 200; ++a) {
      while (quotient * b < a) ++quotient;
      CHECK(kvx::ceil_div(a, b) == quotient);
      CHECK(kvx::round_up(a, b) == quotient * b);
      CHECK(kvx::round_down(a, b) == (quotient * b == a ? a : (quotient - 1) * b));
    }
  }
}

TEST_CASE("the largest sizes do not wrap") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(kvx::ceil_div(most, 2) == most / 2 + 1);
  CHECK(kvx::ceil_div(most, most) == 1);
  CHECK(kvx::round_down(most, 64) == most - 63);
}

TEST_CASE("a product is exact, or -1") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t a :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 31, std::int64_t{3037000499}, most / 3, most}) {
    for (const std::int64_t b :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{1} << 32, std::int64_t{3037000499}, most / 2, most}) {
      const __int128 exact = static_cast<__int128>(a) * b;
      CAPTURE(a);
      CAPTURE(b);
      CHECK(kvx::checked_product(a, b) == (exact > most ? -1 : static_cast<std::int64_t>(exact)));
    }
  }
  CHECK(kvx::checked_product(-1, 5) == -1);
  CHECK(kvx::checked_product(0, -1) == -1);
}
