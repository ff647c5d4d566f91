#pragma once
// One budget for the KV heads of a layer, on the device: each head proposes its best candidates, and the last one divides what there is.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/core/math.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// How many of `count` ascending values are below x.
__device__ __forceinline__ std::int64_t values_below(const std::int32_t* values, std::int64_t count, std::int64_t x) {
  std::int64_t first = 0;
  while (first < count) {
    const std::int64_t middle = first + (count - first) / 2;
    if (values[middle] < x) {
      first = middle + 1;
    } else {
      count = middle;
    }
  }
  return first;
}

/// Gives the heads of a token their parts of the budget, by one block behind all proposals.
///
/// what        the best of all that is proposed, ties to the lowest head, then the lowest token; chosen, counts and marks of each head
template <int Threads>
__device__ __forceinline__ void divide_budget(const rerank_input& in, const rerank_output& out, std::int64_t token,
                                              top_k_scratch<Threads>& s) {
  const std::int64_t H = out.heads, each = out.pool_pitch, first = token * H;
  const std::int32_t* const proposed = out.proposed + first * each;                      // (H, pool_pitch)
  const float* scores = out.proposed_scores + first * each;                              // (H, pool_pitch)
  std::int32_t* const pool = out.pool + first * each;                                    // (taken)
  if (out.pool_bytes() > 0) {
    float* const near = dynamic_shared<float>();
    for (std::int64_t i = threadIdx.x; i < H * each; i += Threads) near[i] = scores[i];
    scores = near;
    __syncthreads();
  }
  const auto take = [&](std::int64_t i, std::int64_t at) { pool[i] = static_cast<std::int32_t>(at); };
  const std::int64_t taken = block_top_k(scores, H * each, out.budget(), s, take).taken;
  for (std::int64_t h = warp_of_thread(); h < H; h += Threads / warp_lanes) {
    const std::int64_t unit = first + h, begin = values_below(pool, taken, h * each), end = values_below(pool, taken, (h + 1) * each);
    for (std::int64_t i = begin + lane_of_thread(); i < end; i += warp_lanes) {
      const std::int32_t place = proposed[pool[i]];
      out.chosen_of(unit)[i - begin] = in.ids[unit * in.id_pitch + place];
      if (out.marks != nullptr) out.marks[unit * out.pitch + place] = 1;
    }
    if (lane_of_thread() == 0) out.chosen_counts[unit] = static_cast<std::int32_t>(end - begin);
  }
}

/// Proposes the best of a unit's candidates, as many as the token's heads share; the last head to do so divides the budget.
///
/// what        a part of a kernel, by one block of each unit of a token
/// shapes      scores (u.count), of the device's memory or shared
/// exactness   no head is given more than the budget, so its best are enough: the choice is that of all scores of all heads
template <int Threads>
__device__ __forceinline__ void propose_rows(const rerank_input& in, const rerank_output& out, std::int64_t unit, const rerank_unit& u,
                                             const float* scores, top_k_scratch<Threads>& s) {
  std::int32_t* const places = out.proposed + unit * out.pool_pitch;                     // (pool_pitch)
  float* const values = out.proposed_scores + unit * out.pool_pitch;                     // (pool_pitch)
  const auto take = [&](std::int64_t i, std::int64_t t) {
    places[i] = static_cast<std::int32_t>(t);
    values[i] = scores[t];
  };
  const std::int64_t taken = block_top_k(scores, u.count, u.keep, s, take).taken;
  for (std::int64_t i = taken + threadIdx.x; i < out.pool_pitch; i += Threads) values[i] = quiet_nan;
  const std::int64_t token = unit / out.heads;
  if (arrives_last(out.proposing(token), static_cast<unsigned>(out.heads))) divide_budget<Threads>(in, out, token, s);
}

}  // namespace kvx
