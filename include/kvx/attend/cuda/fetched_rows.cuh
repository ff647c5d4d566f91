#pragma once
// Chosen rows whose addresses were found before: in place of page tables, what fetch_rows leaves.

#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Addresses of the chosen rows of every unit.
///
/// shapes      found (units, pitch): K of each chosen row, its V `value_at` elements behind
template <class E>
struct fetched_rows {
  const E* const* found = nullptr;
  std::int64_t pitch = 0;
  std::int64_t value_at = 0;
};

/// Those of one unit.
template <class E>
struct fetched_source {
  const E* const* found = nullptr;
  std::int64_t value_at = 0;

  __device__ row_address<E> at(const key_places&, std::int64_t place) const {
    const E* const key = found[place];
    return {key, key + value_at};
  }
};

template <class E>
__device__ fetched_source<E> source_of(const fetched_rows<E>& far, const row_view<const E>&, const std::int32_t*, std::int64_t,
                                       std::int64_t unit) {
  return {far.found + unit * far.pitch, far.value_at};
}

}  // namespace kvx
