#pragma once
// The last steps of reranking, by one block a unit: the group's scores from the logits, and the best of them.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/group_rule.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What choose_best needs in static shared memory.
template <int Threads>
struct choose_scratch {
  group_scratch<Threads> group;
  top_k_scratch<Threads> best;
  float resident[most_scored_heads];
  std::uint32_t orders[most_scored_heads];
};

/// Most scores that choose_best keeps in dynamic shared memory: beyond it they go through the device's.
inline constexpr std::int64_t most_shared_scores = 24 * 1024;

/// All candidates of a unit are chosen, by one block.
template <int Threads>
__device__ __forceinline__ void choose_all(const rerank_input& in, const rerank_output& out, std::int64_t unit, std::int64_t count) {
  const std::int32_t* const ids = in.ids + unit * in.id_pitch;
  std::int32_t* const chosen = out.chosen_of(unit);
  for (std::int64_t i = threadIdx.x; i < count; i += Threads) chosen[i] = ids[i];
  if (threadIdx.x == 0) out.chosen_counts[unit] = static_cast<std::int32_t>(count);
}

/// The best of a unit's candidates from their logits, by one block that sees all of them. Leaves the unit's counters 0.
///
/// has_orders  the counters hold the largest order of each head's logits
/// scores      (count) in shared memory, or null: the unit's in the device's
template <int Threads>
__device__ __forceinline__ void choose_best(group_rule rule, const rerank_input& in, const rerank_output& out, std::int64_t unit,
                                            const rerank_unit& u, bool has_orders, float* scores, choose_scratch<Threads>& s) {
  const int G = out.group;
  for (int g = static_cast<int>(threadIdx.x); g < G; g += Threads) {
    s.resident[g] = in.lse != nullptr ? in.lse[unit * G + g] : -infinity;
    if (!has_orders) continue;
    std::uint32_t* const order = out.counters_of(unit) + g;
    s.orders[g] = *order;
    *order = 0;
  }
  __syncthreads();
  if (scores == nullptr) scores = out.scores + unit * out.pitch;
  block_group_scores(rule, out.logits_of(unit), out.pitch, G, u.count, s.resident, has_orders ? s.orders : nullptr, scores, s.group);
  __syncthreads();
  const std::int32_t* const ids = in.ids + unit * in.id_pitch;
  std::int32_t* const chosen = out.chosen_of(unit);
  const auto take = [&](std::int64_t i, std::int64_t t) { chosen[i] = ids[t]; };
  const top_k_result best = block_top_k(scores, u.count, u.keep, s.best, take);
  if (threadIdx.x == 0) out.chosen_counts[unit] = static_cast<std::int32_t>(best.taken);
}

/// Bytes of dynamic shared memory for the scores of a unit; 0 where there are too many.
constexpr std::size_t shared_score_bytes(std::int64_t candidates) {
  return candidates <= most_shared_scores ? static_cast<std::size_t>(round_up(candidates * 4, 16)) : 0;
}

}  // namespace kvx
