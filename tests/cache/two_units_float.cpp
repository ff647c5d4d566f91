// The other of the two units, compiled alone: its cache holds floats in contiguous slabs.

#include "two_units.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using slabs = cache<host, spec<contiguous<float, page_shape{.tokens = 8, .key_dim = 16, .value_dim = 4}>>>;

sequence last_handle;

}  // namespace

std::vector<float> two_units::keys_of_the_other() {
  const host exec = test::one_thread();
  slabs c(exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = 2, .max_tokens = 64, .max_sequences = 2});
  const sequence s = c.open(exec);
  test::feed(c, exec, s, test::tokens(1, 12));
  last_handle = c.fork(exec, s);
  test::feed(c, exec, last_handle, test::tokens(50, 9));
  c.truncate(exec, last_handle, 12);
  test::feed(c, exec, last_handle, test::tokens(13, 8));
  std::vector<float> keys;
  for (std::int64_t t = 0; t < c.length(last_handle); ++t)
    keys.push_back(*c.view(0).key.at(c.pages(0, last_handle)[static_cast<std::size_t>(t / 8)], 0, t % 8));
  return keys;
}

kvx::sequence two_units::handle_of_the_other() { return last_handle; }

TEST_CASE("this unit alone finds its own rows") { CHECK(two_units::keys_of_the_other().size() == 20); }
