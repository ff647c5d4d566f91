// Caches of different types, elements and layouts live in one program, in one unit and in two: compiled alone.

#include "two_units.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::feed, test::one_thread, test::tokens;

geometry one_layer(std::int64_t tokens_of_all) {
  return {.layers = 1, .kv_heads = 1, .query_heads = 2, .max_tokens = tokens_of_all, .max_sequences = 2};
}

}  // namespace

TEST_CASE("a cache of another unit keeps its own rows and refuses our handles") {
  const host exec = one_thread();
  cache<host, spec<paged<bf16, page_shape{.tokens = 8, .key_dim = 16, .value_dim = 4}>>> ours(exec, {}, one_layer(64));
  const sequence s = ours.open(exec);
  feed(ours, exec, s, tokens(1, 20));
  const std::vector<float> theirs = two_units::keys_of_the_other();
  REQUIRE(theirs.size() == 20);
  for (std::size_t t = 0; t < 20; ++t) {
    CHECK(theirs[t] == test::component(t + 1, test::part::key, 0, 0, 0));
    const bf16 key = *ours.view(0).key.at(ours.pages(0, s)[t / 8], 0, static_cast<std::int64_t>(t % 8));
    CHECK(key == round_to<bf16>(theirs[t]));
  }
  CHECK_THROWS_AS(ours.length(two_units::handle_of_the_other()), usage_error);
}

TEST_CASE("caches of three types side by side do not meet") {
  const host exec = one_thread();
  cache<host, full<half, 64>> a(exec, {}, one_layer(256));
  cache<host, full<float, 5, 576>> b(exec, {}, one_layer(300));
  cache<host, spec<contiguous<bf16, page_shape{.tokens = 16, .key_dim = 64, .value_dim = 64}>>> c(exec, {}, one_layer(64));
  const sequence x = a.open(exec), y = b.open(exec), z = c.open(exec);
  for (std::int64_t i = 0; i < 10; ++i) {
    step sa = a.begin(exec, {{x, 1}});
    step sb = b.begin(exec, {{y, 2}});
    step sc = c.begin(exec, {{z, 3}});
    test::append_all(b, exec, sb, tokens(100, 2));
    test::append_all(c, exec, sc, tokens(200, 3));
    test::append_all(a, exec, sa, tokens(300, 1));
    c.commit(exec, sc);
    a.commit(exec, sa);
    b.commit(exec, sb);
  }
  CHECK(a.length(x) == 10);
  CHECK(b.length(y) == 20);
  CHECK(c.length(z) == 30);
  CHECK_THROWS_AS(a.length(y), usage_error);
  CHECK_THROWS_AS(b.length(z), usage_error);
}
