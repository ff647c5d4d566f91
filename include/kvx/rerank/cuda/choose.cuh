#pragma once
// The last steps of reranking, by one block a unit: the group's scores from the logits, and the best of them.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/group_rule.hpp>
#include <kvx/rerank/cuda/divide_budget.cuh>
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
static_assert(4 * most_shared_scores + static_cast<std::int64_t>(sizeof(choose_scratch<512>)) + 1024 <= 99 * 1024);

/// All candidates of a unit are chosen, by one block.
template <int Threads>
__device__ __forceinline__ void choose_all(const rerank_input& in, const rerank_output& out, std::int64_t unit, std::int64_t count) {
  const std::int32_t* const ids = in.ids + unit * in.id_pitch;
  std::int32_t* const chosen = out.chosen_of(unit);
  for (std::int64_t i = threadIdx.x; i < count; i += Threads) chosen[i] = ids[i];
  if (threadIdx.x == 0) out.chosen_counts[unit] = static_cast<std::int32_t>(count);
}

/// The best of a unit's candidates from their scores, by one block that sees all of them; of a unit that pools, its part of the budget
/// once all heads of the token have theirs.   scores (count)
template <int Threads>
__device__ __forceinline__ void choose_scored(const rerank_input& in, const rerank_output& out, std::int64_t unit, const rerank_unit& u,
                                              const float* scores, choose_scratch<Threads>& s) {
  if (u.pools) return propose_rows<Threads>(in, out, unit, u, scores, s.best);
  const std::int32_t* const ids = in.ids + unit * in.id_pitch;
  std::int32_t* const chosen = out.chosen_of(unit);
  std::uint8_t* const marks = out.marks != nullptr ? out.marks + unit * out.pitch : nullptr;
  const auto take = [&](std::int64_t i, std::int64_t t) {
    chosen[i] = ids[t];
    if (marks != nullptr) marks[t] = 1;
  };
  const top_k_result best = block_top_k(scores, u.count, u.keep, s.best, take);
  if (threadIdx.x == 0) out.chosen_counts[unit] = static_cast<std::int32_t>(best.taken);
}

/// The candidates of a unit whose choice is clear, by one block.
template <int Threads>
__device__ __forceinline__ void choose_clear(const rerank_input& in, const rerank_output& out, std::int64_t unit, const rerank_unit& u,
                                             choose_scratch<Threads>& s) {
  if (u.pools) return choose_scored<Threads>(in, out, unit, u, nullptr, s);  // it has none, and others wait for it
  choose_all<Threads>(in, out, unit, u.count > 0 ? u.count : 0);
}

/// Bases of the heads' exponentials, and what else `each` makes of one head: called by one lane of a warp for (head, base, sum of the
/// head's exponentials over the blocks of the unit, where they are there).
template <int Threads, bool Sums, class Each>
__device__ __forceinline__ void for_each_head(const rerank_input& in, const rerank_output& out, std::int64_t unit, unsigned blocks,
                                              const Each& each) {
  const int G = out.group;
  for (int g = warp_of_thread(); g < G; g += Threads / warp_lanes) {
    std::int64_t sum = 0;
    for (unsigned b = static_cast<unsigned>(lane_of_thread()); Sums && b < blocks; b += warp_lanes)
      sum += out.sums_of(unit)[std::int64_t{b} * G + g];
    if constexpr (Sums) sum = warp_sum(sum);
    if (lane_of_thread() != 0) continue;
    const float resident = in.lse != nullptr ? in.lse[unit * G + g] : -infinity;
    const std::uint32_t order = out.counters_of(unit)[g], other = score_order(resident);
    each(g, softmax_base(order < other ? other : order), sum, resident);
  }
}

/// softmax_sum over many blocks: the sums of the exponentials of candidates [first, last), from logits and orders of all.
template <int Threads>
__device__ __forceinline__ void sum_exponentials(const rerank_input& in, const rerank_output& out, std::int64_t unit, std::int64_t first,
                                                 std::int64_t last, choose_scratch<Threads>& s) {
  for_each_head<Threads, false>(in, out, unit, 0, [&](int g, const softmax_base& b, std::int64_t, float) { s.group.base[g] = b.base; });
  __syncthreads();
  const float* const logits = out.logits_of(unit);
  std::int64_t* const sums = out.sums_of(unit) + first / rerank_candidates * out.group;
  for (int g = 0; g < out.group; ++g) {
    std::int64_t mine = 0;
    for (std::int64_t t = first + threadIdx.x; t < last; t += Threads) {
      const float e = quick_exp(logits[g * out.pitch + t] - s.group.base[g]);
      if (e > 0) mine += fixed_point(e);  // NaN is left out
    }
    const std::int64_t sum = block_reduce<Threads>(
        mine, [](std::int64_t a, std::int64_t b) { return a + b; }, s.group.sums);
    if (threadIdx.x == 0) sums[g] = sum;
  }
}

/// softmax_sum over many blocks: the scores of candidates [first, last), from logits, orders and sums of all.
template <int Threads>
__device__ __forceinline__ void score_candidates(const rerank_input& in, const rerank_output& out, std::int64_t unit, std::int64_t first,
                                                 std::int64_t last, unsigned blocks, choose_scratch<Threads>& s) {
  for_each_head<Threads, true>(in, out, unit, blocks, [&](int g, const softmax_base& b, std::int64_t sum, float resident) {
    s.group.base[g] = b.base;
    s.group.factor[g] = softmax_share(b.largest, sum, resident);
  });
  __syncthreads();
  const float* const logits = out.logits_of(unit);
  for (std::int64_t t = first + threadIdx.x; t < last; t += Threads) {
    float score = 0;
    for (int g = 0; g < out.group; ++g) score += rounded_product(quick_exp(logits[g * out.pitch + t] - s.group.base[g]), s.group.factor[g]);
    out.scores[unit * out.pitch + t] = score;
  }
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
  choose_scored<Threads>(in, out, unit, u, scores, s);
}

}  // namespace kvx
