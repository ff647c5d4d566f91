#pragma once
// The k largest of many scores on the device, exactly: digits of the scores' orders counted from the top, then one ordered pass.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/sketch/top_k.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What block_top_k needs in shared memory. Counts of one digit stand in several copies, so that equal scores of one warp do not all
/// meet in one place.
template <int Threads>
struct top_k_scratch {
  static constexpr int digits = 256, copies = 8;
  static_assert(Threads >= 64, "the least block that pays");
  unsigned histogram[digits * copies];
  unsigned totals[digits];
  block_scratch<unsigned, Threads> sums;
  unsigned digit;
  unsigned left;   ///< scores of that digit that are taken
  unsigned equal;  ///< scores of that digit
  unsigned real;   ///< scores that are not NaN
};

/// Four scores from t on; those beyond the last are NaN, which is never taken.
struct four_scores {
  float x[4];

  __device__ __forceinline__ void load(const float* scores, std::int64_t t, std::int64_t count, bool aligned) {
    if (aligned && t + 4 <= count) {
      const float4 v = *reinterpret_cast<const float4*>(scores + t);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = t + i < count ? scores[t + i] : quiet_nan;
    }
  }
};

/// Counts the digits at `shift` of the scores whose higher digits are `prefix`.
template <int Threads>
__device__ __forceinline__ void count_digits(const float* scores, std::int64_t count, bool aligned, int shift, unsigned prefix,
                                             top_k_scratch<Threads>& s) {
  constexpr int digits = top_k_scratch<Threads>::digits, copies = top_k_scratch<Threads>::copies;
  const int tid = static_cast<int>(threadIdx.x);
  for (int i = tid; i < digits * copies; i += Threads) s.histogram[i] = 0;
  __syncthreads();
  // Loads of several turns together: a lone one would wait for memory each time.
  constexpr int side = 4, turn = 4 * Threads;
  for (std::int64_t first = 4 * tid; first < count; first += side * turn) {
    four_scores fours[side];
#pragma unroll
    for (int j = 0; j < side; ++j) fours[j].load(scores, first + j * turn, count, aligned);
#pragma unroll
    for (int j = 0; j < side; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t order = score_order(fours[j].x[i]);
        const bool counts = order != 0 && (shift == 24 || order >> (shift + 8) == prefix);
        if (counts) atomicAdd(&s.histogram[(order >> shift & 255u) * copies + static_cast<unsigned>(tid % copies)], 1u);
      }
    }
  }
  __syncthreads();
  for (int d = tid; d < digits; d += Threads) {
    unsigned total = 0;
#pragma unroll
    for (int c = 0; c < copies; ++c) total += s.histogram[d * copies + (c + d) % copies];
    s.totals[d] = total;
  }
  __syncthreads();
}

/// Finds the digit at which the `wanted` largest end; by warp 0, which holds 8 digits a lane, the highest first.
template <int Threads>
__device__ __forceinline__ void find_digit(std::int64_t wanted, top_k_scratch<Threads>& s) {
  constexpr int each = top_k_scratch<Threads>::digits / warp_lanes;
  if (warp_of_thread() == 0) {
    const int lane = lane_of_thread(), top = top_k_scratch<Threads>::digits - 1 - each * lane;
    unsigned mine = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) mine += s.totals[top - i];
    const unsigned up_to_here = warp_inclusive_sum(mine);
    const unsigned all = __shfl_sync(all_lanes, up_to_here, warp_lanes - 1);
    const unsigned k = wanted < static_cast<std::int64_t>(all) ? static_cast<unsigned>(wanted) : all;
    unsigned above = up_to_here - mine;
    if (above < k && k <= up_to_here) {
      for (int i = 0; i < each; ++i) {
        const unsigned here = s.totals[top - i];
        if (above + here >= k) {
          s.digit = static_cast<unsigned>(top - i);
          s.left = k - above;
          s.equal = here;
          break;
        }
        above += here;
      }
    }
    if (lane == 0) s.real = all;
  }
  __syncthreads();
}

/// The k largest of `count` scores, by one block.
///
/// what        score a goes before score b if it is larger, or equal at a lower position; NaN is never taken. Calls take(i, t), in one
///             thread each, for the i-th of them, ascending in the position t
/// shapes      scores (count), of the device's memory or shared; count < 2^31. All threads must call and get the result
/// cost        reads the scores at most five times; counts in shared memory
/// exactness   exact; nothing depends on the order of the atomics, which only count
template <int Threads, class Take>
__device__ __forceinline__ top_k_result block_top_k(const float* scores, std::int64_t count, std::int64_t k, top_k_scratch<Threads>& s,
                                                    const Take& take) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(scores) % 16 == 0;
  const int tid = static_cast<int>(threadIdx.x);
  count_digits(scores, count, aligned, 24, 0, s);
  find_digit(k, s);
  const std::int64_t real = s.real;
  const top_k_result result{k < real ? k : real, count - real};
  if (result.taken == 0) {
    __syncthreads();
    return result;
  }
  int shift = 24;
  unsigned prefix = s.digit, ties = s.left, equal = s.equal;
  while (shift > 0 && ties < equal) {
    shift -= 8;
    count_digits(scores, count, aligned, shift, prefix, s);  // its barriers come before the digit is written again
    find_digit(ties, s);
    prefix = prefix << 8 | s.digit;
    ties = s.left;
    equal = s.equal;
  }
  // Taken: all above the prefix, and the first `ties` of those that have it. Threads hold four positions in a row.
  std::int64_t taken = 0;
  four_scores next;
  next.load(scores, 4 * tid, count, aligned);
  for (std::int64_t first = 0; first < count && taken < result.taken; first += 4 * Threads) {
    const std::int64_t t = first + 4 * tid;
    const four_scores four = next;
    next.load(scores, t + 4 * Threads, count, aligned);  // while this turn's are counted
    bool above[4], tie[4];
    unsigned mine = 0;  // above in the low half, ties in the high one
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t order = score_order(four.x[i]);
      above[i] = order != 0 && order >> shift > prefix;
      tie[i] = order != 0 && order >> shift == prefix;
      mine += (above[i] ? 1u : 0u) + (tie[i] ? 0x10000u : 0u);
    }
    unsigned all = 0;
    const unsigned before = block_exclusive_sum<Threads>(mine, s.sums, all);
    unsigned above_before = before & 0xffffu, ties_before = before >> 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (above[i] || (tie[i] && ties_before < ties)) {
        take(taken + above_before + (ties_before < ties ? ties_before : ties), t + i);
      }
      above_before += above[i] ? 1u : 0u;
      ties_before += tie[i] ? 1u : 0u;
    }
    const unsigned ties_here = all >> 16 < ties ? all >> 16 : ties;
    taken += (all & 0xffffu) + ties_here;
    ties -= ties_here;
  }
  __syncthreads();  // the scratch may be used again
  return result;
}

inline constexpr int top_k_threads = 1024;

template <int Threads>
__global__ void __launch_bounds__(Threads) top_k_kernel(tensor_view<const float, 2> scores, const std::int32_t* counts, std::int64_t k,
                                                        tensor_view<std::int32_t, 2> positions, top_k_result* results) {
  __shared__ top_k_scratch<Threads> scratch;
  const std::int64_t row = blockIdx.x;
  const std::int64_t count = counts != nullptr ? counts[row] : scores.extents[1];
  std::int32_t* const out = positions.at(row, 0);
  const auto take = [&](std::int64_t i, std::int64_t t) { out[i] = static_cast<std::int32_t>(t); };
  const top_k_result result = block_top_k(scores.at(row, 0), count, k, scratch, take);
  if (threadIdx.x == 0 && results != nullptr) results[row] = result;
}

/// Positions of the k largest scores of each of many rows.
///
/// what        see block_top_k
/// shapes      scores (rows, C), rows dense; counts (rows) scores of each row, at most C, in device memory, or null: C of every row;
///             positions (rows, at least min(k, C)), rows dense: the first `taken` of a row are written, ascending; results (rows) or null
/// cost        one launch, a block of 1024 threads a row: long rows keep one multiprocessor each
/// errors      usage_error for shapes that do not fit; counts are not checked
inline void top_k(const device& exec, tensor_view<const float, 2> scores, const std::int32_t* counts, std::int64_t k,
                  tensor_view<std::int32_t, 2> positions, top_k_result* results, call_site where = call_site::here()) {
  const std::int64_t rows = scores.extents[0], most = scores.extents[1];
  require_range("top_k: k", k, 0, INT64_MAX, where);
  require_range("top_k: scores of a row", most, 0, INT32_MAX, where);
  require_range("top_k: rows", rows, 0, INT32_MAX, where);
  require_range("top_k: rows of positions", positions.extents[0], rows, rows, where);
  require_range("top_k: positions of a row", positions.extents[1], k < most ? k : most, INT64_MAX, where);
  require((scores.strides[1] == 1 || most <= 1) && (positions.strides[1] == 1 || positions.extents[1] <= 1), "top_k: rows must be dense",
          where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(rows)), .threads = top_k_threads}, top_k_kernel<top_k_threads>, scores, counts, k,
         positions, results);
}

}  // namespace kvx
