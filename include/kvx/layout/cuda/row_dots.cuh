#pragma once
// Inner products of rows with the queries of a group on the device: eight lanes a row.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Lanes that read a row.
inline constexpr int row_lanes = 8;

/// Floats from one query in shared memory to the next.
KVX_HD constexpr int row_query_floats(int dim) { return (dim + 7) / 8 * 8; }

/// Whether all rows of an array begin on multiples of 16 bytes.
template <class E>
bool rows_on_16(const row_array<E>& rows) {
  const auto multiple = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(E)) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && multiple(rows.page_stride) && multiple(rows.head_stride) &&
         multiple(rows.slot_stride);
}

/// Elements [d, d + 16 bytes) of a row as floats, those from `dim` on 0.
template <class E, int Unit>
__device__ __forceinline__ void load_piece(const E* row, int d, int dim, bool wide, float (&x)[Unit]) {
  if (wide && d + Unit <= dim) {
    const uint4 four = *reinterpret_cast<const uint4*>(row + d);
    const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < Unit; ++i) {
      if constexpr (sizeof(E) == 4) {
        x[i] = __uint_as_float(words[i]);
      } else {
        x[i] = to_float(E{static_cast<std::uint16_t>(words[i / 2] >> 16 * (i % 2))});
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Unit; ++i) x[i] = d + i < dim ? to_float(row[d + i]) : 0.0f;
  }
}

/// sums[h] = query h . row, by the eight lanes of a row; all lanes of the warp take part.
///
/// row         not read where it is not `valid`
/// wide        rows begin on multiples of 16 bytes
/// shapes      queries (Heads, pitch) in shared memory, 0 in their padding
/// exactness   float sums, each lane's pieces in ascending order, lanes in a tree: the same bits wherever the rows lie
template <int Heads, class E>
__device__ __forceinline__ void row_dots(const E* row, bool valid, int dim, bool wide, const float* queries, int pitch,
                                         float (&sums)[Heads]) {
  constexpr int unit = 16 / static_cast<int>(sizeof(E));
#pragma unroll
  for (int h = 0; h < Heads; ++h) sums[h] = 0;
  for (int d = lane_of_thread() % row_lanes * unit; valid && d < dim; d += row_lanes * unit) {
    float x[unit];
    load_piece(row, d, dim, wide, x);
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
#pragma unroll
      for (int i = 0; i < unit; i += 4) {
        const float4 q = *reinterpret_cast<const float4*>(queries + h * pitch + d + i);
        sums[h] = fmaf(q.x, x[i], sums[h]);
        sums[h] = fmaf(q.y, x[i + 1], sums[h]);
        sums[h] = fmaf(q.z, x[i + 2], sums[h]);
        sums[h] = fmaf(q.w, x[i + 3], sums[h]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < Heads; ++h) sums[h] = warp_sum<row_lanes>(sums[h]);
}

/// Queries of heads [first, first + Heads) of a group, scaled, in shared memory; those from `group` on 0. All threads call.
///
/// shapes      plain (G, dim); to (Heads, row_query_floats(dim)), behind the caller's next barrier
template <int Threads, int Heads>
__device__ __forceinline__ void stage_row_queries(const float* plain, int first, int group, int dim, float scale, float* to) {
  const int pitch = row_query_floats(dim);
  for (int i = static_cast<int>(threadIdx.x); i < Heads * pitch; i += Threads) {
    const int h = i / pitch, d = i % pitch;
    to[i] = first + h < group && d < dim ? plain[(first + h) * dim + d] * scale : 0.0f;
  }
}

}  // namespace kvx
