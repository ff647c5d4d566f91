#pragma once
// Reductions and prefix sums of a warp and of a block, in a fixed order: the same bits on every run and launch.

#include <cuda_runtime.h>

namespace kvx {

inline constexpr unsigned all_lanes = 0xffffffffu;
inline constexpr int warp_lanes = 32;

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % warp_lanes; }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x) / warp_lanes; }

/// The 32 values of a warp brought together by a commutative op, in a tree of fixed shape; every lane gets the result.
///
/// shapes      `Lanes` lanes that follow each other, a power of two; all lanes of the warp take part
template <int Lanes = warp_lanes, class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) value = op(value, __shfl_xor_sync(all_lanes, value, step));
  return value;
}

template <int Lanes = warp_lanes, class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce<Lanes>(value, [](T a, T b) { return a + b; });
}

template <int Lanes = warp_lanes, class T>
__device__ __forceinline__ T warp_max(T value) {
  return warp_reduce<Lanes>(value, [](T a, T b) { return a < b ? b : a; });
}

/// Sum of the values of this lane and those before it.
template <class T>
__device__ __forceinline__ T warp_inclusive_sum(T value) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int step = 1; step < warp_lanes; step *= 2) {
    const T before = __shfl_up_sync(all_lanes, value, static_cast<unsigned>(step));
    if (lane >= step) value += before;
  }
  return value;
}

/// What reductions and prefix sums of a block of `Threads` threads need in shared memory. Usable again at once: every call ends in a
/// barrier after its last read.
template <class T, int Threads>
struct block_scratch {
  static_assert(Threads % warp_lanes == 0 && Threads <= 1024, "a block is whole warps, at most 1024 threads");
  static constexpr int warps = Threads / warp_lanes;
  T values[warps + 1];
};

/// The values of all threads of a block brought together; every thread gets the result. All threads must call.
template <int Threads, class T, class Op>
__device__ __forceinline__ T block_reduce(T value, Op op, block_scratch<T, Threads>& scratch) {
  constexpr int warps = block_scratch<T, Threads>::warps;
  value = warp_reduce(value, op);
  if (lane_of_thread() == 0) scratch.values[warp_of_thread()] = value;
  __syncthreads();
  T result = scratch.values[0];
#pragma unroll
  for (int w = 1; w < warps; ++w) result = op(result, scratch.values[w]);
  __syncthreads();
  return result;
}

/// Sum of the values of the threads before this one; `total` is the sum of all. All threads must call.
template <int Threads, class T>
__device__ __forceinline__ T block_exclusive_sum(T value, block_scratch<T, Threads>& scratch, T& total) {
  constexpr int warps = block_scratch<T, Threads>::warps;
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const T up_to_here = warp_inclusive_sum(value);
  if (lane == warp_lanes - 1) scratch.values[warp] = up_to_here;
  __syncthreads();
  if (warp == 0) {
    const T mine = lane < warps ? scratch.values[lane] : T{};
    const T sum = warp_inclusive_sum(mine);
    __syncwarp();
    if (lane < warps) scratch.values[lane] = sum - mine;
    if (lane == warps - 1) scratch.values[warps] = sum;
  }
  __syncthreads();
  const T before = scratch.values[warp] + up_to_here - value;
  total = scratch.values[warps];
  __syncthreads();
  return before;
}

}  // namespace kvx
