#pragma once
// Copies on write, and of whole slabs: rows and columns of pages, in every layer of their group.

#include <kvx/backend/host.hpp>
#include <kvx/cache_plan.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/host/rows.hpp>
#include <kvx/layout/sequence_book.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Makes the copies.
template <class Layout, class E, std::size_t Columns>
void copy_pages(const host& exec, const cache_plan& plan, std::span<const layer_memory<E, Columns>> layers,
                std::span<const page_copy> copies) {
  for (const page_copy& c : copies) {
    const std::int64_t unit_pages = plan.groups[static_cast<std::size_t>(c.group)].rules.unit_pages;
    const std::int64_t from = c.from * unit_pages, to = c.to * unit_pages;
    for (const auto& layer : layers) {
      if (layer.group != c.group) continue;
      if constexpr (Layout::owns_rows) copy_rows(exec, layer.rows, from, to, c.rows);
      for (const column_array& column : layer.side) {
        if (column.data != nullptr) copy_blocks(exec, column, from, to, ceil_div(c.rows, Layout::shape.tokens));
      }
    }
  }
}

}  // namespace kvx
