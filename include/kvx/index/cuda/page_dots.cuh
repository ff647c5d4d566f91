#pragma once
// Dots of page means with the queries of a group, to the bit those of the host's scan.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

namespace kvx {

/// One step of sum_and_scatter: lanes whose bit `Step` is set keep the upper half of the values.
template <int Step>
__device__ __forceinline__ void sum_halves(float (&v)[16]) {
  const bool upper = (lane_of_thread() & Step) != 0;
#pragma unroll
  for (int i = 0; i < Step; ++i) {
    const float low = v[i], high = v[i + Step];  // named, or the choice would be one of addresses
    v[i] = (upper ? high : low) + __shfl_xor_sync(all_lanes, upper ? low : high, Step);
  }
}

/// Sums of sixteen values over sixteen lanes, one for each lane.
///
/// what        lane j gets the sum over lanes of v[j]; lanes j and j + 8 are added, then j + 4, j + 2, j + 1
/// cost        15 shuffles instead of 64
__device__ __forceinline__ float sum_and_scatter(float (&v)[16]) {
  sum_halves<8>(v);
  sum_halves<4>(v);
  sum_halves<2>(v);
  sum_halves<1>(v);
  return v[0];
}

/// Dots of `count` page means with 4 Words queries.
///
/// what        term d is added to lane d % 16, ascending, and the lanes as in sum_and_scatter; products are exact (page_query_component).
///             finish(p, h, dot) is called once for each page p and head h, by some thread
/// shapes      queries (round_up(dim, 16), 4 Words) in shared memory, at a multiple of 16 bytes; mean_of(p): (dim) bf16
/// cost        every mean is read once, by the 16 lanes of a half warp
template <int Threads, int Words, class MeanOf, class Finish>
__device__ __forceinline__ void page_dots(const float* queries, int dim, int count, const MeanOf& mean_of, const Finish& finish) {
  constexpr int heads = 4 * Words, pages = 16 / heads, halves = Threads / 16;  // of a half warp: 16 dots at a time
  const int lane = lane_of_thread() % 16, half = static_cast<int>(threadIdx.x) / 16;
  for (int block = 0; block < count; block += halves * pages) {
    const int first = block + half * pages;
    const bf16* means[pages];
#pragma unroll
    for (int i = 0; i < pages; ++i) means[i] = first + i < count ? mean_of(first + i) : nullptr;
    float dots[16] = {};                                                // (pages, heads)
#pragma unroll 2
    for (int d = lane; d < dim; d += 16) {
      float q[heads];
#pragma unroll
      for (int w = 0; w < Words; ++w) {
        const float4 four = reinterpret_cast<const float4*>(queries)[d * Words + w];
        q[4 * w] = four.x;
        q[4 * w + 1] = four.y;
        q[4 * w + 2] = four.z;
        q[4 * w + 3] = four.w;
      }
#pragma unroll
      for (int i = 0; i < pages; ++i) {
        const float m = means[i] != nullptr ? to_float(means[i][d]) : 0.0f;
#pragma unroll
        for (int h = 0; h < heads; ++h) dots[heads * i + h] += m * q[h];
      }
    }
    const float dot = sum_and_scatter(dots);
    const int p = first + lane / heads;
    if (p < count) finish(p, lane % heads, dot);
  }
}

}  // namespace kvx
