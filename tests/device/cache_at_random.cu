// Random operations on a cache on the device, checked against the model of a cache after each.

#include "cache_on_host.cuh"

#include <cache/player.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using namespace kvx;

template <element E, int P>
using paged_of = paged<E, page_shape{.tokens = P, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}>;
template <element E, int P>
using slabs_of = contiguous<E, page_shape{.tokens = P, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}>;

/// Operations of one run; KVX_TEST_OPERATIONS says how many where a device is fast.
template <class Layout>
void play(std::uint64_t seed) {
  CAPTURE(seed);
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::player<Layout, test::cache_on_host<spec<Layout>>, device> p(seed, exec);
  const int count = test::from_environment("KVX_TEST_OPERATIONS", 150);
  for (int i = 0; i < count; ++i) {
    CAPTURE(i);
    p.play();
  }
  p.clear();
  CHECK(p.commits > count / 20);
  CHECK(p.refusals > 0);
  if (count >= 150) CHECK(p.attended > 0);
}

}  // namespace

TEST_CASE_TEMPLATE("a cache on the device holds what the model holds", L, paged_of<float, 4>, paged_of<bf16, 16>, slabs_of<kvx::half, 4>) {
  for (const std::uint64_t run : {1u, 2u}) play<L>(test::from_environment("KVX_TEST_SEED", 0) * 1000u + run);
}
