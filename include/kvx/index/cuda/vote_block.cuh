#pragma once
// What a block does to prepare a search by votes for one unit.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/sign_sum_shared.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/index/sign_sums.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Shared memory of prepare_votes.
template <int Threads>
struct vote_shared {
  static constexpr int warps = Threads / warp_lanes;
  std::int32_t* finite;   // (G)
  double* sums;           // (D) of the finite queries
  double* largest;        // (1) |sum|
  std::int32_t* sizes;    // (D) vote_size
  std::uint64_t* orders;  // (warps, 256) what a bucket lacks << 8 | its id
  std::uint32_t* keys;    // (warps, 256) of each bucket

  KVX_HD vote_shared(scratch_parts& shared, const bucket_search_shape& s)
      : finite(shared.take<std::int32_t>(s.group)),
        sums(shared.take<double>(s.page.key_dim)),
        largest(shared.take<double>(1)),
        sizes(shared.take<std::int32_t>(s.page.key_dim)),
        orders(shared.take<std::uint64_t>(warps * 256)),
        keys(shared.take<std::uint32_t>(warps * 256)) {}
};

/// Bytes of shared memory that a block needs for prepare_votes, at a multiple of 16.
template <int Threads>
std::int64_t prepare_votes_shared(const bucket_search_shape& s) {
  scratch_parts shared;
  vote_shared<Threads>(shared, s);
  return shared.used;
}

/// Sorts `count` values, a power of two, in ascending order: bitonic, by one warp, in shared memory.
__device__ __forceinline__ void warp_sort(std::uint64_t* values, int count) {
  for (int run = 2; run <= count; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      for (int i = lane_of_thread(); i < count; i += warp_lanes) {
        const int other = i ^ apart;
        if (other < i) continue;
        const std::uint64_t a = values[i], b = values[other];
        if ((a > b) != ((i & run) != 0)) {
          values[i] = b;
          values[other] = a;
        }
      }
      __syncwarp();
    }
  }
}

/// Weights of the buckets of subspace b, by one warp.
///
/// what        buckets in the order of what they lack to the best one, the sum of their wrong coordinates' sizes, then of their ids;
///             vote_weight by the keys before each
/// shapes      order (256), keys (256) in shared memory; weights: of the subspace, in memory
template <int Threads>
__device__ __forceinline__ void weigh_buckets(const bucket_search& s, const vote_shared<Threads>& m, std::int64_t unit, int b,
                                              std::int64_t window, std::uint8_t* weights) {
  const int width_of_all = s.sketch.subspace, first = b * width_of_all, left = s.page.key_dim - first;
  const int width = left < width_of_all ? left : width_of_all, buckets = 1 << width;
  std::uint64_t* const order = m.orders + warp_of_thread() * 256;
  std::uint32_t* const keys = m.keys + warp_of_thread() * 256;
  const std::uint32_t* const counts = s.buckets + (unit * plane_bytes(s.page.key_dim) + first / 8) * 256;
  int best = 0;
  for (int j = 0; j < width; ++j) best |= (m.sums[first + j] >= 0 ? 1 : 0) << j;
  for (int id = lane_of_thread(); id < buckets; id += warp_lanes) {
    std::uint64_t lack = 0;
    for (int j = 0; j < width; ++j) lack += ((id ^ best) >> j & 1) != 0 ? static_cast<std::uint64_t>(m.sizes[first + j]) : 0;
    order[id] = lack << 8 | static_cast<std::uint64_t>(id);
    std::uint32_t sum = 0;
    if (width_of_all == 8) {
      sum = counts[id];
    } else {  // four of the eight signs of a byte
      for (int other = 0; other < 16; ++other) sum += counts[first % 8 == 0 ? 16 * other + id : 16 * id + other];
    }
    keys[id] = sum;
  }
  __syncwarp();
  warp_sort(order, buckets);
  std::int64_t before = 0;
  for (int i = 0; i < buckets; i += warp_lanes) {
    const int place = i + lane_of_thread();
    const int id = place < buckets ? static_cast<int>(order[place] & 255) : 0;
    const std::int64_t own = place < buckets ? keys[id] : 0, up_to_here = warp_inclusive_sum(own);
    if (place < buckets) weights[id] = static_cast<std::uint8_t>(vote_weight(before + up_to_here - own, window));
    before += __shfl_sync(all_lanes, up_to_here, warp_lanes - 1);
  }
  __syncwarp();
}

/// Prepares the search of one unit by votes of the mean query; a whole block calls. Clears the unit's histogram and ticket too.
///
/// what        the record of host's prepare_votes: weights of all buckets. Nothing for an empty zone
/// shapes      s.buckets: counts of the unit's zone; in: of this unit; shared: prepare_votes_shared bytes
/// exactness   the host's integers
template <int Threads>
__device__ __forceinline__ void prepare_votes(const bucket_search& s, const unit_zone& zone, std::int64_t unit, const device_queries& in,
                                              std::byte* shared) {
  scratch_parts parts{shared};
  const vote_shared<Threads> m(parts, s);
  const int dim = s.page.key_dim, thread = static_cast<int>(threadIdx.x), warps = Threads / warp_lanes;
  for (int i = thread; i < 256; i += Threads) s.histograms[unit * 256 + i] = 0;
  if (thread == 0) s.tickets[unit] = 0;
  if (zone.tokens() <= 0) return;
  auto* const record = s.queries + unit * s.query_pitch;
  for (int i = thread; i < vote_table_bytes(s.sketch, dim) / 16; i += Threads) reinterpret_cast<uint4*>(record)[i] = make_uint4(0, 0, 0, 0);
  for (int g = warp_of_thread(); g < s.group; g += warps) {
    bool finite = true;
    for (int d = lane_of_thread(); d < dim; d += warp_lanes) finite = finite && is_finite(in.rotated[g * dim + d]);
    finite = __all_sync(all_lanes, finite ? 1 : 0) != 0;
    if (lane_of_thread() == 0) m.finite[g] = finite ? 1 : 0;
  }
  __syncthreads();
  for (int d = thread; d < dim; d += Threads) {
    double sum = 0;
    for (int g = 0; g < s.group; ++g) {
      if (m.finite[g] != 0) sum += static_cast<double>(in.rotated[g * dim + d]);
    }
    m.sums[d] = sum;
  }
  __syncthreads();
  if (warp_of_thread() == 0) {
    double largest = 0;
    for (int d = lane_of_thread(); d < dim; d += warp_lanes) {
      const double size = m.sums[d] < 0 ? -m.sums[d] : m.sums[d];
      largest = size > largest ? size : largest;
    }
    largest = warp_max(largest);
    if (lane_of_thread() == 0) *m.largest = largest;
  }
  __syncthreads();
  for (int d = thread; d < dim; d += Threads) m.sizes[d] = static_cast<std::int32_t>(vote_size(m.sums[d], *m.largest));
  __syncthreads();
  const std::int64_t window = window_count(s.breadth, zone.tokens());
  const int of_subspace = s.sketch.subspace == 8 ? 256 : 16;
  for (int b = warp_of_thread(); b < subspaces(s.sketch, dim); b += warps) {
    weigh_buckets<Threads>(s, m, unit, b, window, reinterpret_cast<std::uint8_t*>(record) + b * of_subspace);
  }
}

}  // namespace kvx
