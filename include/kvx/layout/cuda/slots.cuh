#pragma once
// Slots for far rows, as the kernels that fetch rows or pages give them out: who waits, what is copied, in which order they wait then.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/hot_rows.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The units of slots of one KV head: those that are not selected now, that selected longest ago first, and those that are.
///
/// returns     how many are not selected
template <int Threads>
__device__ __forceinline__ int part_slots(const std::int16_t* order, int units, const unsigned* selected, std::int16_t* waiting,
                                          std::int16_t* kept, block_scratch<int, Threads>& scratch) {
  int before = 0;
  for (int first = 0; first < units; first += Threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::int16_t slot = i < units ? order[i] : std::int16_t{0};
    const bool waits = i < units && (selected[slot / 32] >> slot % 32 & 1u) == 0;
    int all = 0;
    const int at = before + block_exclusive_sum(waits ? 1 : 0, scratch, all);
    if (i < units) {
      if (waits) {
        waiting[at] = slot;
      } else {
        kept[i - at] = slot;
      }
    }
    before += all;
  }
  __syncthreads();
  return before;
}

/// The order behind a launch that has given the units waiting[0 .. given) away: those are last.
template <int Threads>
__device__ __forceinline__ void turn_order(std::int16_t* order, int units, const std::int16_t* waiting, int free, int given,
                                           const std::int16_t* kept) {
  for (int i = static_cast<int>(threadIdx.x); i < units; i += Threads)
    order[i] = i < free - given ? waiting[given + i] : i < units - given ? kept[i - (free - given)] : waiting[i - (units - given)];
}

/// Rows that have been given slots of the units waiting[0 .. count) come from afar, four of a warp at once.
template <int Threads, class E>
__device__ __forceinline__ void copy_to_slots(const far_rows<E>& far, const hot_rows<E>& hot, std::int64_t page_tokens, std::int64_t head,
                                              const std::int16_t* waiting, int count) {
  constexpr int each = 4, part = 16 / static_cast<int>(sizeof(E));
  const std::int64_t* const row_of = hot.row_of + head * hot.slots;
  const int rows = count * hot.unit;
  for (int first = warp_of_thread() * each; first < rows; first += Threads / warp_lanes * each) {
    const E* from[each];
    E* to[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int at = first + i < rows ? first + i : first, slot = waiting[at / hot.unit] * hot.unit + at % hot.unit;
      const std::int64_t row = row_of[slot];
      from[i] = first + i < rows && row >= 0 ? far.key.at(row / page_tokens, head, row % page_tokens) : nullptr;
      to[i] = hot.row(head, slot);
    }
    for (std::int64_t d = lane_of_thread() * part; d < hot.pitch; d += warp_lanes * part) {
      uint4 x[each];
#pragma unroll
      for (int i = 0; i < each; ++i) x[i] = from[i] != nullptr ? load_16(from[i] + d) : uint4{};
#pragma unroll
      for (int i = 0; i < each; ++i) {
        if (from[i] != nullptr) store_16(to[i] + d, x[i]);
      }
    }
  }
}

/// Counts of one launch and KV head: near, in slots, far, rows read, of each thread.
struct launch_counts {
  std::uint64_t of[slot_counts];
};

template <int Threads, class E>
__device__ __forceinline__ void add_counts(const hot_rows<E>& hot, std::int64_t head, const launch_counts& mine,
                                           block_scratch<std::uint64_t, Threads>& scratch) {
#pragma unroll
  for (int i = 0; i < slot_counts; ++i) {
    const std::uint64_t all = block_reduce(
        mine.of[i], [](std::uint64_t a, std::uint64_t b) { return a + b; }, scratch);
    if (threadIdx.x == 0) hot.shown[slot_counts * head + i] = hot.counts[slot_counts * head + i] += all;
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) order_slots_kernel(std::int16_t* order, int slots) {
  for (int i = static_cast<int>(threadIdx.x); i < slots; i += Threads)
    order[std::int64_t{blockIdx.x} * slots + i] = static_cast<std::int16_t>(i);
}

/// Empties all slots: once, before the first launch that uses them.
template <element E>
void clear_hot_rows(const device& exec, const hot_rows<E>& hot, int heads) {
  const current_device here(exec.ordinal);
  const auto set = [&](void* data, int value, std::int64_t bytes) {
    if (bytes > 0) check("cudaMemsetAsync", cudaMemsetAsync(data, value, static_cast<std::size_t>(bytes), exec.stream));
  };
  set(hot.slot_of, 0xff, heads * hot.far_rows * 2);
  set(hot.row_of, 0xff, std::int64_t{heads} * hot.slots * 8);
  set(hot.counts, 0, std::int64_t{heads} * slot_counts * 8);
  launch(exec, {.grid = dim3(static_cast<unsigned>(hot.slots > 0 ? heads : 0)), .threads = 256}, order_slots_kernel<256>, hot.order,
         hot.slots);
}

}  // namespace kvx
