#pragma once
// The values of the blocks that a commit moves into the retrieval zone: codes and means of their semantic pages.

#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/entering_blocks.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/host/page_values.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/host/value_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Fills the columns of values of these blocks in one layer, once index_entering has packed them.
///
/// rows_of, columns_of   (entries): where rows and columns lie, page by page
/// errors      bad_alloc, before anything is written
template <class E>
void encode_entering_values(const host& exec, const value_encoder<E>& values, const key_sketch& sketch, const dci_shape& shape,
                            std::int64_t sink, const row_view<const E>& rows, const block_column_arrays& side,
                            std::span<const entering_blocks> blocks, std::span<const batch_item> rows_of,
                            std::span<const batch_item> columns_of) {
  const std::int64_t tasks = std::ssize(blocks) * rows.heads, of_worker = std::int64_t{rows.page_tokens} * rows.value_dim;
  const std::int64_t pages_of_block = shape.block / rows.page_tokens, workers = host_dense::workers_of(exec, tasks);
  memory_block memory = allocate(exec, workers * of_worker * static_cast<std::int64_t>(sizeof(E)));
  std::atomic<std::int64_t> claimed{0};
  for_each_task(exec, workers, [&](std::int64_t worker) {
    E* const own = reinterpret_cast<E*>(memory.data()) + worker * of_worker;
    for (std::int64_t i = claimed.fetch_add(1); i < tasks; i = claimed.fetch_add(1)) {
      const entering_blocks& b = blocks[static_cast<std::size_t>(i / rows.heads)];
      const dci_head<E> of = tree_head<E>(rows, side, rows_of[b.entry].pages, columns_of[b.entry].pages, i % rows.heads, sink);
      for (std::int64_t page = b.first * pages_of_block; page < (b.first + b.count) * pages_of_block; ++page)
        encode_page_values(values, sketch, shape, of, page, codes_of(side), page_values_of(side), own);
    }
  });
}

}  // namespace kvx
