#pragma once
// Selection on a device: the tokens that the cut of each unit takes, in the order of their positions.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Of sixteen scores that follow each other, bit i for those above a level, and for those equal to it; places from `count` on count not.
struct score_masks {
  std::uint32_t above = 0;
  std::uint32_t equal = 0;

  __device__ __forceinline__ score_masks(const uint4& scores, int level, int count) {
    const std::uint32_t words[4] = {scores.x, scores.y, scores.z, scores.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int score = static_cast<int>(words[i / 4] >> 8 * (i % 4) & 255);
      if (i < count) {
        above |= score > level ? 1u << i : 0;
        equal |= score == level ? 1u << i : 0;
      }
    }
  }
};

/// A chunk's part of the ids of its unit.
///
/// start       keys before the chunk: from these follows where its ids begin, whatever other blocks do
template <int Threads>
__device__ __forceinline__ void select_chunk(const bucket_search& s, const scanned_chunk& c, std::int64_t first, const candidate_cut& cut,
                                             chunk_start start) {
  __shared__ block_scratch<std::uint32_t, Threads> sums;
  std::int32_t* const out = s.ids_of(c.unit);
  const auto ties = static_cast<std::uint32_t>(cut.ties);
  for (int tile = 0; tile < c.tokens; tile += 16 * Threads) {
    const int place = tile + 16 * static_cast<int>(threadIdx.x), count = c.tokens - place;
    uint4 scores = make_uint4(0, 0, 0, 0);
    if (count > 0) scores = *reinterpret_cast<const uint4*>(s.scores_of(c.unit) + c.start + place);
    const score_masks found(scores, cut.level, count);
    // Both counts in one sum: a chunk holds less than 2^16 keys.
    std::uint32_t all = 0;
    const std::uint32_t own = static_cast<std::uint32_t>(__popc(found.above)) << 16 | static_cast<std::uint32_t>(__popc(found.equal));
    const std::uint32_t before = block_exclusive_sum(own, sums, all);
    std::uint32_t tie = start.ties + (before & 0xffffu);
    std::uint32_t at = start.above + (before >> 16) + (tie < ties ? tie : ties);
    for (std::uint32_t left = found.above | found.equal; left != 0; left &= left - 1) {
      const int i = __ffs(static_cast<int>(left)) - 1;
      const bool equal = (found.equal >> i & 1) != 0;
      if (!equal || tie < ties) out[at++] = static_cast<std::int32_t>(first + place + i);
      tie += equal ? 1 : 0;
    }
    start.above += all >> 16;
    start.ties += all & 0xffffu;
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) select_candidates_kernel(const bucket_search s, const device_batch batch) {
  __shared__ unit_zone zone;
  __shared__ std::int64_t cut_ties, cut_count;
  __shared__ std::uint32_t above, ties;
  __shared__ int level;
  const std::int64_t unit = blockIdx.x / s.chunks, chunk = blockIdx.x % s.chunks;
  if (threadIdx.x == 0) {
    zone = read_zone(s, batch, unit);
    cut_count = s.cuts[unit].count;
    cut_ties = s.cuts[unit].ties;
    level = s.cuts[unit].level;
    if (cut_count > 0) {  // starts of chunks that are not there are not used
      above = s.starts[unit * s.chunks + chunk].above;
      ties = s.starts[unit * s.chunks + chunk].ties;
    }
  }
  __syncthreads();
  const scanned_chunk c = chunk_of_block(s, zone);
  if (c.tokens <= 0 || cut_count <= 0) return;
  select_chunk<Threads>(s, c, c.page * s.page.tokens + c.slot, {level, cut_ties, cut_count}, {above, ties});
}

/// The candidates of all units, ascending, from what a scan has left.
///
/// what        keys with a score above the level of the cut, and the first of those that have it: ties go to the lowest token
/// exactness   integers; no order comes from atomics
/// cost        reads one byte a key, writes four a candidate
inline void select_candidates(const device& exec, const bucket_search& s, const device_batch& batch, call_site where = call_site::here()) {
  require_device_search(s, where);
  constexpr int threads = 128;
  launch(exec, {dim3(static_cast<unsigned>(s.units() * s.chunks)), threads, 0}, select_candidates_kernel<threads>, s, batch);
}

}  // namespace kvx
