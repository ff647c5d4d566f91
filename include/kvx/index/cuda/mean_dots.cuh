#pragma once
// Inner products of means with the queries of a group on the device, eight lanes a mean.

#include <kvx/core/element.hpp>
#include <kvx/layout/cuda/row_dots.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Inner products of `count` means with `Heads` queries. All threads call.
///
/// shapes      queries: see stage_row_queries; mean_of(i): (dim) bf16, read for i < count; finish(i, h, product) is called once for each
///             mean and head, by some thread
/// wide        means begin on multiples of 16 bytes
template <int Threads, int Heads, class MeanOf, class Finish>
__device__ __forceinline__ void mean_dots(const float* queries, int dim, std::int64_t count, bool wide, const MeanOf& mean_of,
                                          const Finish& finish) {
  static_assert(Heads <= row_lanes);
  const int lane = lane_of_thread() % row_lanes;
  for (std::int64_t turn = 0; turn < count; turn += Threads / row_lanes) {
    const std::int64_t i = turn + static_cast<int>(threadIdx.x) / row_lanes;
    const bool valid = i < count;
    float sums[Heads];
    row_dots<Heads>(mean_of(valid ? i : 0), valid, dim, wide, queries, row_query_floats(dim), sums);
    float own = sums[0];  // one place that finishes: eight of them spilled registers
#pragma unroll
    for (int h = 1; h < Heads; ++h) own = lane == h ? sums[h] : own;
    if (valid && lane < Heads) finish(i, lane, own);
  }
}

}  // namespace kvx
