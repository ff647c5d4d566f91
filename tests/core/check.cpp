// Errors name the argument, the limit and the line of the caller.

#include <kvx/core/check.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {

void takes_a_layer(int layer, kvx::call_site where = kvx::call_site::here()) { kvx::require_range("layer", layer, 0, 31, where); }
void takes_yes(bool yes, kvx::call_site where = kvx::call_site::here()) { kvx::require(yes, "yes: is no", where); }

}  // namespace

TEST_CASE("a value within its limits passes, both ends included") {
  CHECK_NOTHROW(takes_a_layer(0));
  CHECK_NOTHROW(takes_a_layer(31));
  CHECK_NOTHROW(takes_yes(true));
}

TEST_CASE("a value outside is named with its limits, and the caller with file and line") {
  for (const int layer : {-1, 32, -2147483647}) {
    const int line = __LINE__ + 2;
    try {
      takes_a_layer(layer);
      FAIL("no throw");
    } catch (const kvx::usage_error& error) {
      const std::string text = error.what();
      CHECK(text == std::string(__FILE__) + ":" + std::to_string(line) + ": layer is " + std::to_string(layer) + ", allowed are 0 to 31");
      CHECK(std::string(error.where().file) == __FILE__);
      CHECK(error.where().line == line);
    }
  }
}

TEST_CASE("a broken rule is an invalid argument") {
  CHECK_THROWS_AS(takes_yes(false), std::invalid_argument);
  CHECK_THROWS_WITH(takes_yes(false), (std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": yes: is no").c_str());
}

TEST_CASE("what does not fit carries the numbers") {
  const kvx::capacity_error error("pages", 7, 3, {"a.cpp", 9});
  CHECK(error.needed() == 7);
  CHECK(error.free() == 3);
  CHECK(std::string(error.what()) == "a.cpp:9: out of pages: 7 needed, 3 free");
}
