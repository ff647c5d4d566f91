#pragma once
// Rows of a span between their pages and a dense array, on the device, as they are.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int dense_row_threads = 128;

/// The row of a token and head by a warp.
template <bool Gathers, int Threads, element E>
__global__ void __launch_bounds__(Threads)
    dense_rows_kernel(span_rows<E> rows, std::int64_t tokens, std::int32_t heads, E* dense, std::int64_t pitch) {
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * (Threads / warp_lanes) + warp_of_thread();
  if (unit >= tokens * heads) return;
  const std::int64_t t = unit / heads;
  const auto head = static_cast<std::int32_t>(unit % heads);
  E* const in_page = rows.row(t, head);
  E* const in_array = dense + t * pitch + std::int64_t{head} * rows.dim;
  for (int d = lane_of_thread(); d < rows.dim; d += warp_lanes) {
    if constexpr (Gathers) {
      in_array[d] = in_page[d];
    } else {
      in_page[d] = in_array[d];
    }
  }
}

/// Copies the rows of so many tokens, to `dense` where Gathers, else from it.
///
/// shapes      heads of all layers of the span; dense (tokens, heads, dim), `pitch` elements from token to token
/// cost        one launch
template <bool Gathers, element E>
void copy_dense_rows(const device& exec, const span_rows<E>& rows, std::int64_t tokens, std::int32_t heads, E* dense, std::int64_t pitch,
                     call_site where = call_site::here()) {
  require_range("position of the first token", rows.first, 0, INT32_MAX - tokens, where);
  launch(exec, {grid_of(ceil_div(tokens * heads, dense_row_threads / warp_lanes), where), dense_row_threads},
         dense_rows_kernel<Gathers, dense_row_threads, E>, rows, tokens, heads, dense, pitch);
}

}  // namespace kvx
