// Semantic pages whose rows lie in host memory, beside all rows near: slots for rows and for whole pages, more and fewer than are found.

#include "offload_twins.cuh"

#include <kvx/index/dci_tree.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using namespace kvx;
using test::decode_far, test::tokens;
using route = attend_options::route;

template <element E, placement Place, dci_shape Shape = dci_shape{.block = 32}, class Reranker = pass_through>
using ice = spec<paged<E, page_shape{.tokens = 8, .key_dim = 24, .value_dim = 16}, zones{.sink = 8, .local = 12}, Place>,
                 dci_tree<dci_shape(Shape)>, Reranker>;
constexpr dci_shape of_means{.block = 16, .by = dci_shape::metric::keys, .rank = dci_shape::ranking::mean_key};

template <element E, placement Place, dci_shape Shape = dci_shape{.block = 32}, class Reranker = pass_through>
void decode(int steps, std::uint64_t seed, int slots, std::int64_t keep, int probes = 0) {
  decode_far<ice<E, placement::resident, Shape, Reranker>, ice<E, Place, Shape, Reranker>>(
      steps, seed, 220, slots, {.keep = keep, .pages = {.probes = probes}, .path = route::retrieve});
}

}  // namespace

TEST_CASE("pages in slots: steps, forks, cuts and drops give the bits of all rows near") {
  decode<float, placement::offload_bulk>(60, 7, 96, 24);
}
TEST_CASE("rows in slots give them too") { decode<float, placement::offload_uva>(30, 8, 48, 24, 12); }
TEST_CASE("slots fewer than the pages found, or none") {
  decode<bf16, placement::offload_bulk, of_means>(12, 9, 8, 24);
  decode<bf16, placement::offload_bulk, of_means>(8, 10, 0, 24);
}
TEST_CASE("the best tokens of the pages found, by keys that lie far and by codes") {
  decode<kvx::half, placement::offload_bulk, dci_shape{.block = 32, .by = dci_shape::metric::keys}, exact>(12, 11, 64, 5);
  decode<float, placement::offload_uva, dci_shape{.block = 32}, rsq_ip<4>>(12, 12, 40, 12);
}
TEST_CASE("tiers over pages whose rows are far") {
  using both = rsq_ip<4, tiers{.value_bits = 4, .tail = true}>;
  decode<float, placement::offload_bulk, dci_shape{.block = 32}, both>(12, 13, 64, 6);
}
TEST_CASE("pages found by codes of their members") {
  decode<float, placement::offload_bulk, dci_shape{.block = 32, .rank = dci_shape::ranking::coded_member}>(12, 3, 64, 24);
}
TEST_CASE("without semantic pages the slots of offload_bulk take rows") {
  decode_far<test::paris<float, 16, placement::resident>, test::paris<float, 16, placement::offload_bulk>>(
      5, 7, 200, 48, {.keep = 12, .path = route::retrieve});
}

TEST_CASE("pages are counted: those that were asked for, in slots, and read, with their bytes") {
  using far = ice<float, placement::offload_bulk>;
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const geometry g{.layers = 1,
                   .kv_heads = 2,
                   .query_heads = 2,
                   .max_tokens = 600,
                   .max_sequences = 1,
                   .kinds = {layer_kind::retrieve()},
                   .near_tokens = 120,
                   .hot_rows = 80};
  test::cache_on_host<far> c(exec, {}, g);
  const sequence s = c.open(exec);
  for (test::token t = 1; t < 400; t += 20) test::feed(c, exec, s, tokens(t, 20));
  const auto ask = [&] {
    step x = c.begin(exec, {{s, 1}});
    test::append_all(c, exec, x, tokens(900, 1));
    test::attend_all(c, exec, x, tokens(900, 1), {.keep = 80, .path = route::retrieve});  // ten pages a head: as many as there are slots
    stream.wait();
    return c.stats();
  };
  const cache_stats first = ask(), second = ask();  // the same query: the same pages
  CHECK(first.far_hit == 0);
  CHECK(first.far_wanted > 12);
  CHECK(first.far_wanted <= 20);
  CHECK(first.far_moved == first.far_wanted);
  const std::int64_t row = pitch_of<float>(far::layout_type::shape).row * 4;
  CHECK(first.far_bytes_moved % row == 0);
  CHECK(first.far_bytes_moved <= first.far_moved * 8 * row);
  CHECK(first.far_bytes_moved > first.far_moved * 4 * row);
  CHECK(second.far_hit == first.far_wanted);
  CHECK(second.far_moved == first.far_moved);
  CHECK(second.far_bytes_moved == first.far_bytes_moved);
  CHECK(second.hit_rate() == .5);
  CHECK(second.selected_near + second.selected_hot + second.selected_far == 0);
  CHECK(second.slot_bytes == c.on_device().bytes(g).slots);
}
