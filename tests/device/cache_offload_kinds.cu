// Rows in host memory beside all rows near, for the ways to read them: slots fewer than a choice, dense attention, true logits, tiers.

#include "offload_twins.cuh"

#include <doctest/doctest.h>

namespace {

using namespace kvx;
using test::decode_far, test::paris;
using route = attend_options::route;

constexpr key_sketch signs{.bits = 1, .balance = 64};
using in_tiers = rsq_ip<4, tiers{.value_bits = 4, .tail = true}>;
template <placement Place>
using true_logits = spec<test::rows_in<kvx::half, 16, Place>, sign_buckets<signs>, exact>;
template <placement Place>
using everything = spec<test::rows_in<bf16, 4, Place>>;

}  // namespace

TEST_CASE("slots fewer than a choice, in pages of four") {
  decode_far<paris<bf16, 4, placement::resident>, paris<bf16, 4, placement::offload_uva>>(5, 8, 200, 5,
                                                                                          {.keep = 20, .path = route::retrieve});
}
TEST_CASE("dense attention, which reads every row wherever it lies") {
  decode_far<everything<placement::resident>, everything<placement::offload_uva>>(8, 9, 160, 48, {});
}
TEST_CASE("true logits of keys that lie far") {
  decode_far<true_logits<placement::resident>, true_logits<placement::offload_uva>>(5, 10, 200, 48, {.keep = 12, .path = route::retrieve});
}
TEST_CASE("a budget of the layer, whose heads choose more rows than there are slots") {
  decode_far<paris<bf16, 16, placement::resident, in_tiers>, paris<bf16, 16, placement::offload_uva, in_tiers>>(
      6, 13, 200, 14, {.keep = 12, .path = route::retrieve, .budget = {retrieve_budget::kind::layer}});
}
TEST_CASE("tiers without exact rows: nothing that lies far is looked at") {
  using far_tiers = paris<float, 16, placement::offload_uva, in_tiers>;
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::cache_on_host<far_tiers> c(
      exec, {}, {.layers = 3, .kv_heads = 2, .query_heads = 2, .max_tokens = 400, .max_sequences = 1, .near_tokens = 120, .hot_rows = 8});
  const sequence s = c.open(exec);
  for (test::token t = 1; t < 300; t += 20) test::feed(c, exec, s, test::tokens(t, 20));
  for (const std::int64_t keep : {0, 6}) {
    step x = c.begin(exec, {{s, 1}});
    test::append_all(c, exec, x, test::tokens(500, 1));
    test::attend_all(c, exec, x, test::tokens(500, 1), {.keep = keep, .path = route::retrieve});
    stream.wait();
    const cache_stats stats = c.stats();
    CHECK(stats.far_bytes > 0);
    CHECK((stats.selected_near + stats.selected_hot + stats.selected_far > 0) == (keep > 0));
  }
}
TEST_CASE("a cache whose layers are all dense has nothing far, and is built") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const cache<device, paris<float, 16, placement::offload_uva>> c(
      exec, {}, {.layers = 2, .kv_heads = 2, .query_heads = 2, .max_tokens = 400, .max_sequences = 1, .near_tokens = 120, .hot_rows = 8});
  CHECK(c.stats().far_bytes == 0);
}
TEST_CASE("tiers: rows that are far, codes and means that are near") {
  decode_far<paris<float, 16, placement::resident, in_tiers>, paris<float, 16, placement::offload_uva, in_tiers>>(
      12, 12, 200, 48, {.keep = 12, .path = route::retrieve});
}
