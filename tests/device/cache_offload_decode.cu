// 300 steps with rows in host memory beside the same with all rows near: zones that move, forks, cuts, dropped and partly accepted steps.

#include "offload_twins.cuh"

#include <cache/player.hpp>

#include <doctest/doctest.h>

namespace {

using namespace kvx;
using test::decode_far, test::paris;
using route = attend_options::route;

constexpr key_sketch signs{.bits = 1, .balance = 64};
template <placement Place>
using true_logits = spec<test::rows_in<kvx::half, 16, Place>, sign_buckets<signs>, exact>;
template <element E, int P>
using far_of = paged<E, page_shape{.tokens = P, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}, placement::offload_uva>;
template <placement Place>
using everything = spec<test::rows_in<bf16, 4, Place>>;

}  // namespace

TEST_CASE("300 steps with rows in host memory give the bits of 300 with all rows near") {
  decode_far<paris<float, 16, placement::resident>, paris<float, 16, placement::offload_uva>>(
      300, 7, 300, 48, {.keep = 12, .path = attend_options::route::retrieve});
}
TEST_CASE("the same where slots are fewer than a selection, in pages of four") {
  decode_far<paris<bf16, 4, placement::resident>, paris<bf16, 4, placement::offload_uva>>(
      60, 8, 260, 5, {.keep = 20, .path = attend_options::route::retrieve});
}
TEST_CASE("the same without slots") {
  decode_far<paris<float, 16, placement::resident>, paris<float, 16, placement::offload_uva>>(
      30, 11, 300, 0, {.keep = 12, .path = attend_options::route::retrieve});
}
TEST_CASE("the same with dense attention, which reads every row wherever it lies") {
  decode_far<everything<placement::resident>, everything<placement::offload_uva>>(8, 9, 160, 48, {});
}
TEST_CASE("the same with true logits of keys that lie far") {
  decode_far<true_logits<placement::resident>, true_logits<placement::offload_uva>>(5, 10, 200, 48, {.keep = 12, .path = route::retrieve});
}

TEST_CASE_TEMPLATE("random operations on a cache whose near memory is small", L, far_of<float, 4>, far_of<bf16, 16>) {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::player<L, test::cache_on_host<spec<L>>, device> p(5, exec);
  for (int i = 0; i < test::from_environment("KVX_TEST_OPERATIONS", 300); ++i) {
    CAPTURE(i);
    p.play();
  }
  p.clear();
  CHECK(p.commits > 20);
  CHECK(p.near_shortages < 40);
}

TEST_CASE("the same in tiers: rows that are far, codes and means that are near") {
  using in_tiers = rsq_ip<4, tiers{.value_bits = 4, .tail = true}>;
  decode_far<paris<float, 16, placement::resident, in_tiers>, paris<float, 16, placement::offload_uva, in_tiers>>(
      12, 12, 200, 48, {.keep = 12, .path = route::retrieve});
}
