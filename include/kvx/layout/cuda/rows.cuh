#pragma once
// Writing rows on the device: new tokens into their pages, copies of pages before they are written to, chosen rows side by side.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/layout/cuda/convert_row.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int row_threads = 128;  ///< a block of these kernels: four warps, a row each

template <element E, element T>
__global__ void __launch_bounds__(row_threads)
    append_rows_kernel(row_view<E> rows, device_batch batch, tensor_view<const T, 3> k, tensor_view<const T, 3> v) {
  const auto n = static_cast<std::int64_t>(blockIdx.x);
  const batch_token token = token_of_block(batch, n);
  if (token.query < 0) return;
  const std::int64_t slot = token.position() % rows.page_tokens;
  const int lane = lane_of_thread();
  int page = lane == 0 ? token.item.pages[token.position() / rows.page_tokens] : 0;
  page = __shfl_sync(all_lanes, page, 0);
  for (int h = warp_of_thread(); h < rows.heads; h += row_threads / warp_lanes) {
    convert_row(rows.key.at(page, h, slot), k.at(n, h, 0), rows.key_dim, k.strides[2], lane);
    convert_row(rows.value.at(page, h, slot), v.at(n, h, 0), rows.value_dim, v.strides[2], lane);
  }
}

/// Stores K and V of a ragged batch.
///
/// shapes      k (N, H, D), v (N, H, Dv), any strides; rows and batch in device memory
/// exactness   values are rounded once, to E; padding of rows is not written
/// cost        one launch: one read of k and v, one write of the rows, 16 bytes at once where rows and k, v lie on multiples of 16
/// errors      usage_error for shapes that do not fit; cuda_error where the launch is refused
template <element E, element T>
void append_rows(const device& exec, const row_view<E>& rows, const device_batch& batch, tensor_view<const T, 3> k,
                 tensor_view<const T, 3> v, call_site where = call_site::here()) {
  require_shape("append_rows: k", k, {batch.tokens, rows.heads, rows.key_dim}, where);
  require_shape("append_rows: v", v, {batch.tokens, rows.heads, rows.value_dim}, where);
  launch(exec, {dim3(static_cast<unsigned>(batch.tokens)), row_threads}, append_rows_kernel<E, T>, rows, batch, k, v);
}

/// One copy of pages (`page_copy` is what a sequence book asks for): rows [0, count) that begin at page `from` go to page `to`; both runs
/// of pages are consecutive.
struct copied_pages {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

/// Read by one thread for the whole block; all threads call.
__device__ inline copied_pages copy_of_block(const copied_pages* copies, std::int64_t index) {
  __shared__ copied_pages copy;
  if (threadIdx.x == 0) copy = copies[index];
  __syncthreads();
  const copied_pages found = copy;
  __syncthreads();
  return found;
}

template <element E>
__device__ void copy_head_rows(const row_view<E>& rows, const copied_pages& copy, std::int64_t page, std::int64_t head) {
  const std::int64_t left = copy.count - page * rows.page_tokens;
  for (std::int64_t slot = warp_of_thread(); slot < rows.page_tokens && slot < left; slot += row_threads / warp_lanes) {
    convert_row<E, E>(rows.key.at(copy.to + page, head, slot), rows.key.at(copy.from + page, head, slot), rows.key_dim, 1,
                      lane_of_thread());
    convert_row<E, E>(rows.value.at(copy.to + page, head, slot), rows.value.at(copy.from + page, head, slot), rows.value_dim, 1,
                      lane_of_thread());
  }
}

template <element E>
__global__ void __launch_bounds__(row_threads) copy_rows_kernel(row_view<E> rows, copied_pages copy) {
  copy_head_rows(rows, copy, static_cast<std::int64_t>(blockIdx.x) / rows.heads, static_cast<std::int64_t>(blockIdx.x) % rows.heads);
}

template <element E>
__global__ void __launch_bounds__(row_threads)
    copy_listed_rows_kernel(row_view<E> rows, const copied_pages* copies, std::int64_t most_pages) {
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) / rows.heads;
  const copied_pages copy = copy_of_block(copies, unit / most_pages);
  copy_head_rows(rows, copy, unit % most_pages, static_cast<std::int64_t>(blockIdx.x) % rows.heads);
}

/// Rows [0, count) that begin at page `from` are copied to page `to`, for every head; both runs of pages are consecutive.
template <element E>
void copy_rows(const device& exec, const row_view<E>& rows, std::int64_t from, std::int64_t to, std::int64_t count) {
  const std::int64_t blocks = ceil_div(count, rows.page_tokens) * rows.heads;
  launch(exec, {dim3(static_cast<unsigned>(blocks)), row_threads}, copy_rows_kernel<E>, rows, copied_pages{from, to, count});
}

/// Several copies in one launch.
///
/// shapes      copies (n) in device memory, each of at most `most` rows; one of count 0 copies nothing
/// errors      no row may be written by one copy and read by another
template <element E>
void copy_listed_rows(const device& exec, const row_view<E>& rows, const copied_pages* copies, std::int64_t n, std::int64_t most) {
  const std::int64_t pages = ceil_div(most, rows.page_tokens);
  launch(exec, {dim3(static_cast<unsigned>(n * pages * rows.heads)), row_threads}, copy_listed_rows_kernel<E>, rows, copies, pages);
}

inline constexpr std::int64_t block_part = row_threads * 64;  ///< bytes of a column that one block copies

__device__ inline void copy_part(const column_array& column, const copied_pages& copy, std::int64_t part, std::int64_t head) {
  const std::int64_t end = copy.count * column.pitch;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t at = part * block_part + (i * row_threads + static_cast<int>(threadIdx.x)) * 16;
    if (at < end) store_16(column.at(copy.to, head) + at, load_16(column.at(copy.from, head) + at));
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) copy_blocks_kernel(column_array column, copied_pages copy) {
  copy_part(column, copy, static_cast<std::int64_t>(blockIdx.x) / column.heads, static_cast<std::int64_t>(blockIdx.x) % column.heads);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) copy_listed_blocks_kernel(column_array column, const copied_pages* copies, std::int64_t parts) {
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) / column.heads;
  const copied_pages copy = copy_of_block(copies, unit / parts);
  copy_part(column, copy, unit % parts, static_cast<std::int64_t>(blockIdx.x) % column.heads);
}

/// The blocks of `pages` consecutive pages of a column are copied, for every head.
inline void copy_blocks(const device& exec, const column_array& column, std::int64_t from, std::int64_t to, std::int64_t pages) {
  const std::int64_t parts = ceil_div(pages * column.pitch, block_part);
  launch(exec, {dim3(static_cast<unsigned>(parts * column.heads)), row_threads}, copy_blocks_kernel<row_threads>, column,
         copied_pages{from, to, pages});
}

/// Several copies in one launch.
///
/// shapes      copies (n) in device memory; their counts are pages, at most `most`
inline void copy_listed_blocks(const device& exec, const column_array& column, const copied_pages* copies, std::int64_t n,
                               std::int64_t most) {
  const std::int64_t parts = ceil_div(most * column.pitch, block_part);
  launch(exec, {dim3(static_cast<unsigned>(n * parts * column.heads)), row_threads}, copy_listed_blocks_kernel<row_threads>, column, copies,
         parts);
}

template <element E>
__global__ void __launch_bounds__(row_threads)
    gather_rows_kernel(row_view<const E> rows, device_batch batch, row_ids ids, tensor_view<E, 3> keys, tensor_view<E, 3> values) {
  constexpr int warps = row_threads / warp_lanes;
  const std::int64_t parts = ceil_div(ids.most, row_threads);
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) / parts, head = unit % rows.heads;
  const batch_token token = token_of_block(batch, unit / rows.heads);
  if (token.query < 0) return;
  const int lane = lane_of_thread();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) % parts * row_threads + warp_of_thread() * (row_threads / warps);
  int count = lane == 0 ? ids.counts[unit] : 0;
  count = __shfl_sync(all_lanes, count, 0);
  const std::int64_t at = first + lane;  // each lane looks up one row, the warp copies them in turns
  const bool there = at < count;
  const std::int64_t id = there ? ids.of(unit)[at] : 0;
  const int page = there ? token.item.pages[id / rows.page_tokens] : 0;
  for (int i = 0; i < warp_lanes && first + i < count; ++i) {
    const int from = __shfl_sync(all_lanes, page, i);
    const auto slot = static_cast<int>(__shfl_sync(all_lanes, static_cast<int>(id % rows.page_tokens), i));
    convert_row<E, E>(keys.at(unit, first + i, 0), rows.key.at(from, head, slot), rows.key_dim, 1, lane);
    convert_row<E, E>(values.at(unit, first + i, 0), rows.value.at(from, head, slot), rows.value_dim, 1, lane);
  }
}

/// Chosen rows of every unit, side by side.
///
/// shapes      keys (units, most, D), values (units, most, Dv): rows [0, counts[u]) of unit u are written, components dense
/// errors      usage_error for shapes that do not fit
template <element E>
void gather_rows(const device& exec, const row_view<const E>& rows, const device_batch& batch, const row_ids& ids, tensor_view<E, 3> keys,
                 tensor_view<E, 3> values, call_site where = call_site::here()) {
  const std::int64_t units = batch.tokens * rows.heads;
  require_shape("gather_rows: keys", keys, {units, ids.most, rows.key_dim}, where);
  require_shape("gather_rows: values", values, {units, ids.most, rows.value_dim}, where);
  require(keys.strides[2] == 1 && values.strides[2] == 1, "gather_rows: the components of a row must be dense", where);
  const std::int64_t blocks = units * ceil_div(ids.most, row_threads);
  launch(exec, {dim3(static_cast<unsigned>(blocks)), row_threads}, gather_rows_kernel<E>, rows, batch, ids, keys, values);
}

}  // namespace kvx
