// 300 steps with rows in host memory beside the same with all rows near: zones that move, forks, cuts, dropped and partly accepted steps.

#include "offload_twins.cuh"

#include <cache/player.hpp>

#include <doctest/doctest.h>

namespace {

using namespace kvx;
using test::decode_far, test::paris;
using route = attend_options::route;
using near = paris<float, 16, placement::resident>;
using far = paris<float, 16, placement::offload_uva>;
using small = paged<float, page_shape{.tokens = 4, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}, placement::offload_uva>;

}  // namespace

TEST_CASE("300 steps with rows in host memory give the bits of 300 with all rows near") {
  decode_far<near, far>(300, 7, 300, 48, {.keep = 12, .path = route::retrieve});
}
TEST_CASE("the same without slots") { decode_far<near, far>(12, 7, 200, 0, {.keep = 12, .path = route::retrieve}); }

TEST_CASE("random operations on a cache whose near memory is small") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::player<small, test::cache_on_host<spec<small>>, device> p(5, exec);
  for (int i = 0; i < test::from_environment("KVX_TEST_OPERATIONS", 300); ++i) {
    CAPTURE(i);
    p.play();
  }
  p.clear();
  CHECK(p.commits > 20);
  CHECK(p.near_shortages < 40);
}
