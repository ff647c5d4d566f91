#pragma once
// Two caches on the device to which the same is done: one whose rows all lie near, and one whose near memory holds little.

#include "paired_caches.cuh"

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>

namespace kvx::test {

template <element E, int P, placement Place>
using rows_in = paged<E, page_shape{.tokens = P, .key_dim = 24, .value_dim = 16}, zones{.sink = 3, .local = 20}, Place>;
template <element E, int P, placement Place, class Reranker = rsq_ip<4>>
using paris = spec<rows_in<E, P, Place>, sign_buckets<key_sketch{.balance = 64}>, Reranker>;

inline geometry geometry_of_offload(std::int64_t near, int slots) {
  return {.layers = 4,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 1200,
          .max_sequences = 3,
          .kinds = {layer_kind::retrieve(), layer_kind::window(20, 3), layer_kind::dense(), layer_kind::retrieve()},
          .rollback = 400,
          .near_tokens = near,
          .hot_rows = slots};
}

/// A cache of all rows near beside one whose near memory is small; the same is done to both.
template <class Near, class Far>
struct offload_twins : paired_caches<device, cache_on_host<Near>, device, cache_on_host<Far>> {
  using both = paired_caches<device, cache_on_host<Near>, device, cache_on_host<Far>>;

  offload_twins(std::uint64_t seed, std::int64_t near, int slots)
      : both(seed, geometry_of_offload(0, 0), geometry_of_offload(near, slots), {.prompt = 40, .piece = 40, .fork = 70, .far_cut = 90}) {}
};

template <class Near, class Far>
void decode_far(int steps, std::uint64_t seed, std::int64_t near, int slots, const attend_options& how) {
  offload_twins<Near, Far> t(seed, near, slots);
  t.grow(240, how);
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    t.step_once(how);
    if (i % 20 == 9) {
      for (const auto& p : t.open) CHECK(snapshot(t.a, p.a) == snapshot(t.b, p.b));
    }
  }
  t.stream.wait();
  const cache_stats stats = t.b.stats();
  CAPTURE(t.compared);
  CAPTURE(t.refused);
  CHECK(t.apart == 0);
  CHECK(t.compared > 50 * steps);
  CHECK(t.refused < steps / 4);
  CHECK(stats.far_bytes > 0);
  CHECK(stats.row_bytes + stats.far_bytes == t.a.stats().row_bytes);
  if (how.path == attend_options::route::retrieve) {
    CHECK(stats.far_moved > 0);
    CHECK(stats.far_bytes_moved > 0);
    if (stats.selected_far > 0) CHECK(stats.selected_near > 0);
    if (slots > 30 && steps >= 60) CHECK(stats.hit_rate() > .2);
  }
}

}  // namespace kvx::test
