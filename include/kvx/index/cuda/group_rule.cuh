#pragma once
// Scores of tokens for a whole group of query heads, on the device: one block a row of tokens.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/sketch/top_k.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Heads of a group at most.
inline constexpr int most_scored_heads = 128;

/// What block_group_scores needs in shared memory.
template <int Threads>
struct group_scratch {
  float base[most_scored_heads];    ///< what is taken off a head's logits: its largest, 0 where that is -inf
  float factor[most_scored_heads];  ///< softmax_share
  union {
    block_scratch<std::uint32_t, Threads> largest;
    block_scratch<std::int64_t, Threads> sums;
  };
};

/// Largest of a head's logits and its resident log-sum-exp, as an order; NaN is left out, 0 for neither.
///
/// shapes      all threads call and get the result
template <int Threads>
__device__ __forceinline__ std::uint32_t largest_order(const float* logits, std::int64_t count, block_scratch<std::uint32_t, Threads>& s) {
  std::uint32_t most = 0;
#pragma unroll 4
  for (std::int64_t t = threadIdx.x; t < count; t += Threads) {
    const std::uint32_t order = score_order(logits[t]);
    if (order > most) most = order;
  }
  return block_reduce<Threads>(
      most, [](std::uint32_t a, std::uint32_t b) { return a < b ? b : a; }, s);
}

/// What is taken off a head's logits before their exponentials.
///
/// order       largest score_order of its logits and its resident log-sum-exp, 0 for neither
struct softmax_base {
  float largest;
  float base;  ///< the largest, 0 where it is -inf

  __device__ __forceinline__ explicit softmax_base(std::uint32_t order) {
    largest = order != 0 ? score_of(order) : -infinity;
    base = largest == -infinity ? 0.0f : largest;
  }
};

/// softmax_share of every head, by one block: factors and bases behind the barrier at the end.
///
/// orders      (G) largest score_order of each head's logits, 0 for none, where somebody has found them already; null: found here
template <int Threads>
__device__ __forceinline__ void find_shares(const float* logits, std::int64_t pitch, int heads, std::int64_t count, const float* resident,
                                            const std::uint32_t* orders, group_scratch<Threads>& s) {
  constexpr int side = 4;  // heads whose exponentials are summed side by side
  for (int first = 0; first < heads; first += side) {
    float largest[side], base[side];
#pragma unroll
    for (int j = 0; j < side; ++j) {
      const int g = first + j;
      largest[j] = -infinity;
      base[j] = 0;
      if (g >= heads) continue;
      std::uint32_t order = orders != nullptr ? orders[g] : largest_order<Threads>(logits + g * pitch, count, s.largest);
      const std::uint32_t other = resident != nullptr ? score_order(resident[g]) : 0;
      if (other > order) order = other;
      const softmax_base of(order);
      largest[j] = of.largest;
      base[j] = of.base;
    }
    std::int64_t sums[side] = {};
    for (std::int64_t t = threadIdx.x; t < count; t += Threads) {
#pragma unroll
      for (int j = 0; j < side; ++j) {
        if (first + j >= heads) continue;
        const float e = quick_exp(logits[(first + j) * pitch + t] - base[j]);
        if (e > 0) sums[j] += fixed_point(e);  // NaN is left out
      }
    }
#pragma unroll
    for (int j = 0; j < side; ++j) {
      const int g = first + j;
      if (g >= heads) continue;
      const std::int64_t sum = block_reduce<Threads>(
          sums[j], [](std::int64_t a, std::int64_t b) { return a + b; }, s.sums);
      if (threadIdx.x == 0) {
        s.base[g] = base[j];
        s.factor[g] = softmax_share(largest[j], sum, resident != nullptr ? resident[g] : -infinity);
      }
    }
  }
  __syncthreads();
}

/// One score for each token from the logits of a group of heads, by one block; see group_scores.
///
/// shapes      logits (G, pitch), the first `count` of each row; resident (G) or null; orders: see find_shares; scores (count), of the
///             device's memory or shared. All threads must call; each writes scores t = threadIdx.x, + Threads, ..: others may read
///             them behind a barrier
template <int Threads>
__device__ __forceinline__ void block_group_scores(group_rule rule, const float* logits, std::int64_t pitch, int heads, std::int64_t count,
                                                   const float* resident, const std::uint32_t* orders, float* scores,
                                                   group_scratch<Threads>& s) {
  if (rule.by == group_rule::kind::softmax_sum) {
    find_shares(logits, pitch, heads, count, resident, orders, s);
    for (std::int64_t t = threadIdx.x; t < count; t += Threads) {
      float sum = 0;
      for (int g = 0; g < heads; ++g) sum += rounded_product(quick_exp(logits[g * pitch + t] - s.base[g]), s.factor[g]);
      scores[t] = sum;
    }
    __syncthreads();  // the scratch may be used again
    return;
  }
  const bool mean = rule.by == group_rule::kind::mean;
  for (std::int64_t t = threadIdx.x; t < count; t += Threads)
    scores[t] = mean ? mean_score(logits + t, pitch, heads) : max_score(logits + t, pitch, heads);
}

inline constexpr int group_threads = 512;

template <int Threads>
__global__ void __launch_bounds__(Threads)
    group_scores_kernel(group_rule rule, tensor_view<const float, 3> logits, const std::int32_t* counts, const float* resident,
                        tensor_view<float, 2> scores) {
  __shared__ group_scratch<Threads> scratch;
  const std::int64_t unit = blockIdx.x;
  const auto heads = static_cast<int>(logits.extents[1]);
  block_group_scores(rule, logits.at(unit, 0, 0), logits.strides[1], heads, counts != nullptr ? counts[unit] : logits.extents[2],
                     resident != nullptr ? resident + unit * heads : nullptr, nullptr, scores.at(unit, 0), scratch);
}

/// One score for each token of each unit from the logits of a group of heads.
///
/// shapes      logits (units, G, C), rows dense; counts (units) tokens of each unit, at most C, in device memory, or null: C;
///             resident (units, G) or null; scores (units, C), rows dense: the first of each row are written
/// units       logits and resident in nats; softmax_sum: scores are probabilities, at most G
/// cost        one launch, a block a unit; softmax_sum: reads logits three times, two exponentials a logit
/// exactness   the bits of the host: exponentials are added in fixed point
/// errors      usage_error for shapes that do not fit, and for more heads than most_scored_heads; a NaN logit makes its token's score NaN
///             and changes no other
inline void group_scores(const device& exec, group_rule rule, tensor_view<const float, 3> logits, const std::int32_t* counts,
                         const float* resident, tensor_view<float, 2> scores, call_site where = call_site::here()) {
  const std::int64_t units = logits.extents[0], G = logits.extents[1], C = logits.extents[2];
  require_range("group_scores: heads", G, 1, most_scored_heads, where);
  require_range("group_scores: units", units, 0, INT32_MAX, where);
  require_shape("group_scores: scores", scores, {units, C}, where);
  require((logits.strides[2] == 1 && scores.strides[1] == 1) || C <= 1, "group_scores: rows must be dense", where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = group_threads}, group_scores_kernel<group_threads>, rule, logits,
         counts, resident, scores);
}

}  // namespace kvx
