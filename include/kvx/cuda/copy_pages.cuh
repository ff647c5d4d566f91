#pragma once
// Copies on write, and of whole slabs, on the device: the list of copies is uploaded once and serves all layers.

#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_plan.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/cuda/device_scratch.cuh>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/cuda/rows.cuh>
#include <kvx/layout/sequence_book.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Makes the copies; rows that may lie far are the affair of what places them.
///
/// lists       memory for the uploaded lists
/// cost        one upload; one launch a layer and one for each of its columns, whatever the number of copies
template <class Layout, class E, std::size_t Columns>
void copy_pages(const device& exec, const cache_plan& plan, std::span<const layer_memory<E, Columns>> layers,
                std::span<const page_copy> copies, upload_ring& uploads, device_scratch& lists) {
  if (copies.empty()) return;
  struct range {
    std::int64_t first = 0, count = 0, most_rows = 0, most_pages = 0;
  };
  std::vector<range> of_group(plan.groups.size());
  std::vector<copied_pages> rows, blocks;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    range& r = of_group[g];
    r.first = std::ssize(rows);
    const std::int64_t unit_pages = plan.groups[g].rules.unit_pages;
    for (const page_copy& c : copies) {
      if (std::cmp_not_equal(c.group, g)) continue;
      const std::int64_t pages = ceil_div(c.rows, Layout::shape.tokens);
      rows.push_back({c.from * unit_pages, c.to * unit_pages, c.rows});
      blocks.push_back({c.from * unit_pages, c.to * unit_pages, pages});
      ++r.count;
      r.most_rows = std::max(r.most_rows, c.rows);
      r.most_pages = std::max(r.most_pages, pages);
    }
  }
  const std::int64_t bytes = std::ssize(rows) * static_cast<std::int64_t>(sizeof(copied_pages));
  lists.reserve(exec, 2 * bytes, false);
  auto* const rows_at = reinterpret_cast<copied_pages*>(lists.data());
  auto* const blocks_at = rows_at + rows.size();
  const upload_piece pieces[] = {{rows_at, rows.data(), bytes}, {blocks_at, blocks.data(), bytes}};
  uploads.enqueue(exec, pieces);
  for (const auto& layer : layers) {
    const range& r = of_group[static_cast<std::size_t>(layer.group)];
    if constexpr (Layout::owns_rows) {
      if (!layer.may_be_far()) copy_listed_rows(exec, layer.rows, rows_at + r.first, r.count, r.most_rows);
    }
    for (const column_array& column : layer.side) {
      if (column.data != nullptr) copy_listed_blocks(exec, column, blocks_at + r.first, r.count, r.most_pages);
    }
  }
}

}  // namespace kvx
