#pragma once
// Pages of rows from one frame to another, between near and far memory; what slots hold of a far frame that is filled anew is forgotten.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/layout/cuda/rows.cuh>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int move_threads = 256;

/// The first row of a frame.
template <class E>
__device__ __forceinline__ E* frame_at(const row_view<E>& near, const far_rows<E>& far, std::int64_t frame, std::int64_t head) {
  return frame < far.near_pages ? near.key.at(frame, head, 0) : far.key.at(frame - far.near_pages, head, 0);
}

template <int Threads, class E>
__global__ void __launch_bounds__(Threads)
    move_pages_kernel(row_view<E> near, far_rows<E> far, hot_rows<E> hot, const copied_pages* moves) {
  const copied_pages move = copy_of_block(moves, static_cast<std::int64_t>(blockIdx.x) / near.heads);
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) % near.heads, P = near.page_tokens;
  const int tid = static_cast<int>(threadIdx.x);
  constexpr int part = 16 / static_cast<int>(sizeof(E)), each = 4;
  const E* const from = frame_at(near, far, move.from, head);
  E* const to = frame_at(near, far, move.to, head);
  const std::int64_t end = move.count * near.key.slot_stride;
  for (std::int64_t first = tid * part; first < end; first += each * Threads * part) {
    uint4 x[each] = {};
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const std::int64_t d = first + i * Threads * part;
      if (d < end) x[i] = load_16(from + d);
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const std::int64_t d = first + i * Threads * part;
      if (d < end) store_16(to + d, x[i]);
    }
  }
  if (move.to < far.near_pages) return;
  std::int16_t* const slot_of = hot.slot_of + head * hot.far_rows + (move.to - far.near_pages) * P;  // (P)
  for (std::int64_t i = tid; i < P; i += Threads) {
    const int slot = slot_of[i];
    if (slot < 0) continue;
    hot.row_of[head * hot.slots + slot] = -1;
    slot_of[i] = -1;
  }
}

/// Makes moves side by side, for every KV head of one layer.
///
/// shapes      moves (n) in device memory: from and to are frames, count rows that begin at the first of the page; rows of a page and head
///             follow each other, K then V, in both memories
/// cost        one launch; each row is read and written once
/// errors      no frame may be written by one move and read by another
template <element E>
void move_pages(const device& exec, const row_view<E>& near, const far_rows<E>& far, const hot_rows<E>& hot, const copied_pages* moves,
                std::int64_t n) {
  launch(exec, {.grid = dim3(static_cast<unsigned>(n * near.heads)), .threads = move_threads}, move_pages_kernel<move_threads, E>, near,
         far, hot, moves);
}

}  // namespace kvx
