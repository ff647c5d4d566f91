// quick_exp keeps its bound, never leaves [0, 1], never falls where exp rises, and says what it does outside its range.

#include <kvx/core/quick_exp.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using kvx::quick_exp;

TEST_CASE("within four units in the last place down to -87, and monotone within them") {
  double worst = 0;
  float before = 0;
  for (float x = -87; x <= 0; x += 0x1p-13f) {
    const double exact = std::exp(static_cast<double>(x));
    const float e = quick_exp(x);
    worst = std::max(worst, std::fabs(static_cast<double>(e) - exact) / std::ldexp(1.0, std::ilogb(exact) - 23));
    REQUIRE(e <= 1);
    REQUIRE(e > before * (1 - 0x1p-20f));
    before = e;
  }
  CHECK(worst <= 4);
  CHECK(worst > 0);
}

TEST_CASE("values that no search depends on") {
  CHECK(quick_exp(0) == 1);
  CHECK(quick_exp(-0.0f) == 1);
  CHECK(quick_exp(-0x1p-149f) == 1);
  CHECK(quick_exp(-87) > 0);
  CHECK(quick_exp(std::nextafter(-87.0f, -88.0f)) == 0);
  CHECK(quick_exp(-kvx::infinity) == 0);
  CHECK(kvx::is_nan(quick_exp(kvx::quiet_nan)));
}
