#pragma once
// Writing rows on the host: new tokens into their pages, and copies of pages before they are written to.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/convert.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace kvx {

/// to[i] <- from[i], rounded to nearest even where E is narrower.
template <element E, element T>
void convert_row(E* to, const T* from, std::int64_t n, std::int64_t stride) {
  if (stride == 1) return simd::convert_row(to, from, n);
  for (std::int64_t i = 0; i < n; ++i) to[i] = round_to<E>(to_float(from[i * stride]));
}

/// Stores K and V of a ragged batch.
///
/// shapes      k (N, H, D), v (N, H, Dv), any strides
/// exactness   values are rounded once, to E; padding of rows is not written
/// cost        one read of k and v, one write of the rows
template <element E, element T>
void append_rows(const host& exec, const row_view<E>& rows, std::span<const batch_item> batch, tensor_view<const T, 3> k,
                 tensor_view<const T, 3> v) {
  constexpr std::int64_t tokens_per_task = 64;
  for (const batch_item& item : batch) {
    for_each_task(exec, ceil_div(item.queries, tokens_per_task), [&](std::int64_t task) {
      const std::int64_t end = task * tokens_per_task + tokens_per_task;
      for (std::int64_t i = task * tokens_per_task; i < item.queries && i < end; ++i) {
        const std::int64_t position = item.length - item.queries + i;
        const std::int64_t page = item.pages[position / rows.page_tokens];
        for (int h = 0; h < rows.heads; ++h) {
          convert_row(rows.key.at(page, h, position % rows.page_tokens), k.at(item.first + i, h, 0), rows.key_dim, k.strides[2]);
          convert_row(rows.value.at(page, h, position % rows.page_tokens), v.at(item.first + i, h, 0), rows.value_dim, v.strides[2]);
        }
      }
    });
  }
}

/// Rows [0, count) that begin at page `from` are copied to page `to`, for every head; both runs of pages are consecutive.
template <element E>
void copy_rows(const host& exec, const row_view<E>& rows, std::int64_t from, std::int64_t to, std::int64_t count) {
  const std::int64_t pages = ceil_div(count, rows.page_tokens);
  for_each_task(exec, pages * rows.heads, [&](std::int64_t task) {
    const std::int64_t page = task / rows.heads;
    const std::int64_t head = task % rows.heads;
    for (std::int64_t slot = 0; slot < rows.page_tokens && page * rows.page_tokens + slot < count; ++slot) {
      std::memcpy(rows.key.at(to + page, head, slot), rows.key.at(from + page, head, slot),
                  static_cast<std::size_t>(rows.key_dim) * sizeof(E));
      std::memcpy(rows.value.at(to + page, head, slot), rows.value.at(from + page, head, slot),
                  static_cast<std::size_t>(rows.value_dim) * sizeof(E));
    }
  });
}

/// The blocks of `pages` consecutive pages of a column are copied, for every head.
inline void copy_blocks(const host&, const column_array& column, std::int64_t from, std::int64_t to, std::int64_t pages) {
  for (int h = 0; h < column.heads; ++h) std::memcpy(column.at(to, h), column.at(from, h), static_cast<std::size_t>(pages * column.pitch));
}

}  // namespace kvx
