#pragma once
// Pages in order of their worth, best first, and the order in which heads of a group take turns, by one block of threads.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Pages that stand in turns at most: turns are kept as floats.
inline constexpr std::int64_t most_turns = 0x7e000000;

/// The score of a turn: a positive float, the smaller the later the turn, different ones for different turns.
///
/// turn        0 to most_turns
KVX_HD constexpr float score_of_turn(std::int64_t turn) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(0x7f000000 - turn)); }
static_assert(score_of_turn(0) > score_of_turn(1) && score_of_turn(most_turns) > 0);

/// The k best pages, the best first, equal ones by position; NaN is never taken. All threads call, and get how many there are.
///
/// shapes      scores (count); tops, order (k): the same pages, ascending and in order
/// cost        compares each of the pages with all others
template <int Threads>
__device__ std::int64_t order_best(const float* scores, std::int64_t count, std::int64_t k, std::int32_t* tops, std::int32_t* order,
                                   top_k_scratch<Threads>& scratch) {
  const auto take = [&](std::int64_t i, std::int64_t t) { tops[i] = static_cast<std::int32_t>(t); };
  const std::int64_t taken = block_top_k(scores, count, k, scratch, take).taken;
  for (std::int64_t i = threadIdx.x; i < taken; i += Threads) {
    const float score = scores[tops[i]];
    std::int64_t rank = 0;
    for (std::int64_t j = 0; j < taken; ++j) {
      const float other = scores[tops[j]];
      rank += other > score || (other == score && j < i) ? 1 : 0;
    }
    order[rank] = tops[i];
  }
  __syncthreads();
  return taken;
}

/// Scores of pages where the heads of a group take turns: head by head the best, then the second best, ..., each page at its first turn.
///
/// shapes      logits (heads, pitch), the first `count` of each row; scores (count): NaN for pages that no head has among its `wanted`
///             best ones; tops, order (wanted). All threads call and see the scores
/// exactness   the `wanted` best scores are the pages that the host takes in turn
template <int Threads>
__device__ void take_turns(const float* logits, std::int64_t pitch, int heads, std::int64_t count, std::int64_t wanted, std::int32_t* tops,
                           std::int32_t* order, float* scores, top_k_scratch<Threads>& scratch) {
  for (std::int64_t t = threadIdx.x; t < count; t += Threads) scores[t] = quiet_nan;
  __syncthreads();
  for (int g = 0; g < heads; ++g) {
    const std::int64_t taken = order_best(logits + g * pitch, count, wanted, tops, order, scratch);
    for (std::int64_t i = threadIdx.x; i < taken; i += Threads) {
      const float turn = score_of_turn(i * heads + g);
      float& score = scores[order[i]];
      if (!(score >= turn)) score = turn;  // NaN where this is its first
    }
    __syncthreads();
  }
}

}  // namespace kvx
