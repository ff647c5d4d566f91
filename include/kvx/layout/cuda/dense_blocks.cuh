#pragma once
// Blocks of a column between their pages and a dense array, on the device.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/layout/columns.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

inline constexpr int dense_block_threads = 128;

/// One block of a column by a block of threads, byte by byte: their sizes are any, and a dense array has no gaps.
template <bool Gathers, int Threads>
__global__ void __launch_bounds__(Threads)
    dense_blocks_kernel(column_array column, const std::int32_t* pages, std::int64_t block_bytes, std::byte* dense) {
  const std::int64_t block = blockIdx.x, head = block % column.heads;
  std::byte* const in_page = column.at(pages[block / column.heads], head);
  std::byte* const in_array = dense + block * block_bytes;
  for (std::int64_t i = threadIdx.x; i < block_bytes; i += Threads) {
    if constexpr (Gathers) {
      in_array[i] = in_page[i];
    } else {
      in_page[i] = in_array[i];
    }
  }
}

/// Copies the blocks of so many pages, to `dense` where Gathers, else from it.
///
/// shapes      pages (count) in device memory; dense (count, heads, block_bytes)
/// cost        one launch
template <bool Gathers>
void copy_dense_blocks(const device& exec, const column_array& column, const std::int32_t* pages, std::int64_t count,
                       std::int64_t block_bytes, std::byte* dense, call_site where = call_site::here()) {
  require_range("blocks of a column", count * column.heads, 0, INT32_MAX, where);
  launch(exec, {dim3(static_cast<unsigned>(count * column.heads)), dense_block_threads}, dense_blocks_kernel<Gathers, dense_block_threads>,
         column, pages, block_bytes, dense);
}

}  // namespace kvx
