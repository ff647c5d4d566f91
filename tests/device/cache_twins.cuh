#pragma once
// A cache on the host and one on the device to which the same is done.

#include "paired_caches.cuh"

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>

namespace kvx::test {

template <class Spec>
geometry geometry_of_twins() {
  return {.layers = 3,
          .kv_heads = 2,
          .query_heads = 6,
          .max_tokens = 2600,
          .max_sequences = 3,
          .kinds = {layer_kind::retrieve(), layer_kind::window(20, 3), layer_kind::retrieve()},
          .rollback = 400,
          .rope = {rope_pairs::order::halves, Spec::layout_type::shape.key_dim / 2 * 2}};
}

/// Outputs are float sums in other orders, and exact to 2^-17 of the largest term. In tiers the host alone rounds weights of coded rows, to
/// 1/254 of the largest: `within` is larger there. Of many query rows the device rounds weights to the element of the rows: of values in
/// [-1, 1) that is `rounded` at most.
template <class Spec>
struct twins : paired_caches<host, cache<host, Spec>, device, cache_on_host<Spec>> {
  using both = paired_caches<host, cache<host, Spec>, device, cache_on_host<Spec>>;
  const host& on_host = both::on_a;
  const device& on_device = both::on_b;

  explicit twins(std::uint64_t seed, const Spec& of = {}) : both(seed, geometry_of_twins<Spec>(), geometry_of_twins<Spec>(), {}, of) {
    both::within = 3e-4f;
    using E = typename Spec::layout_type::element_type;
    both::rounded = std::is_same_v<E, bf16> ? 0x1p-9f : std::is_same_v<E, half> ? 0x1p-12f : 0;
  }

  void check_all() {
    for (const auto& p : both::open) CHECK(snapshot(both::a, p.a) == snapshot(both::b, p.b));
    CHECK(both::refused == 0);
    CHECK(counts(both::a.stats()) == counts(both::b.stats()));
    CHECK(both::a.stats().balanced_sequences == both::b.stats().balanced_sequences);
  }
};

}  // namespace kvx::test
