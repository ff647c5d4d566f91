#pragma once
// Histograms of score bytes and norm bytes, as one warp reads them: eight bins a lane.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/index/bucket_score.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// The 256 bins of a histogram, those of a byte b in lane b / 8. All lanes of the warp take part in every call.
struct warp_histogram {
  std::uint32_t bins[8];

  __device__ __forceinline__ explicit warp_histogram(const std::uint32_t* histogram) {
#pragma unroll
    for (int i = 0; i < 8; ++i) bins[i] = histogram[8 * lane_of_thread() + i];
  }

  __device__ __forceinline__ void clear_lowest() {
    if (lane_of_thread() == 0) bins[0] = 0;
  }

  __device__ __forceinline__ std::int64_t lane_sum() const {
    std::int64_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += bins[i];
    return sum;
  }

  /// Keys in all bins.
  __device__ __forceinline__ std::int64_t keys() const { return warp_sum(lane_sum()); }

  /// Byte of the key at a place (from 1, at most keys()) of the ascending order.
  __device__ __forceinline__ int byte_at(std::int64_t place) const {
    const std::int64_t own = lane_sum(), before = warp_inclusive_sum(own) - own;
    int found = 256;
    std::int64_t sum = before;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum += bins[i];
      if (sum >= place && found == 256) found = 8 * lane_of_thread() + i;
    }
    return warp_reduce(found, [](int a, int b) { return a < b ? a : b; });
  }

  /// Byte of the largest key; 0 where there is none.
  __device__ __forceinline__ int largest() const {
    int found = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) found = bins[i] != 0 ? 8 * lane_of_thread() + i : found;
    return warp_max(found);
  }

  /// more[i]: keys in the bins above this lane's bin i.
  __device__ __forceinline__ void keys_above(std::int64_t (&more)[8]) const {
    const std::int64_t own = lane_sum();
    std::int64_t sum = keys() - warp_inclusive_sum(own);
#pragma unroll
    for (int i = 7; i >= 0; --i) {
      more[i] = sum;
      sum += bins[i];
    }
  }

  /// cut_of, by the whole warp; every lane gets it.
  __device__ __forceinline__ candidate_cut cut(std::int64_t wanted) {
    clear_lowest();
    std::int64_t more[8];
    keys_above(more);
    const std::int64_t all = keys();
    // The level is the highest that as many keys reach, or 1.
    int level = 1;
#pragma unroll
    for (int i = 0; i < 8; ++i) level = more[i] + bins[i] >= wanted && 8 * lane_of_thread() + i > level ? 8 * lane_of_thread() + i : level;
    level = warp_max(level);
    std::int64_t over = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) over += 8 * lane_of_thread() + i > level ? bins[i] : 0;
    over = warp_sum(over);
    candidate_cut cut;
    if (wanted <= 0) return cut;
    cut.level = level;
    cut.count = all < wanted ? all : wanted;
    cut.ties = cut.count - over;
    return cut;
  }
};

}  // namespace kvx
