#pragma once
// NaN in every row and column that no sequence holds: whatever reads free memory shows.

#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx::test {

/// Fills rows [slot, P) of a page, padding included, with NaN. Tests may write through a reader's view; users may not.
template <class E>
void poison_page(const row_view<const E>& rows, std::int64_t page, std::int64_t slot) {
  for (int head = 0; head < rows.heads; ++head) {
    E* const first = const_cast<E*>(rows.key.at(page, head, slot));
    std::fill(first, first + (rows.page_tokens - slot) * rows.key.slot_stride, round_to<E>(quiet_nan));
  }
}

/// Poisons what is free in one layer of `pages` pages: pages of no sequence, slots behind all lengths, columns outside the
/// retrieval zones. Returns the pages that some sequence holds.
template <class Cache>
std::int64_t poison_free(const Cache& cache, int layer, std::int64_t pages, std::span<const sequence> open) {
  constexpr bool has_columns = Cache::index::columns(Cache::layout::shape).size() > 0;
  const bool columns = has_columns && cache.geometry().kind(layer).sees == layer_kind::attention::retrieve;
  const auto rows = cache.view(layer);
  const std::int64_t P = rows.page_tokens;
  std::vector<std::int64_t> live(static_cast<std::size_t>(pages));     // slots in use of each page
  std::vector<bool> encoded(static_cast<std::size_t>(pages));          // has a column that counts
  for (const sequence s : open) {
    const auto table = cache.pages(layer, s);
    const std::int64_t n = cache.length(s);
    const std::int64_t end = edge(Cache::zones, n, P) / P;
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(table.size()); ++j) {
      const std::int32_t page = table[static_cast<std::size_t>(j)];
      if (page < 0) continue;
      auto& slots = live[static_cast<std::size_t>(page)];
      slots = std::max(slots, std::min(P, n - j * P));
      if (j >= Cache::zones.sink / P && j < end) encoded[static_cast<std::size_t>(page)] = true;
    }
  }
  for (std::int64_t page = 0; page < pages; ++page) {
    poison_page(rows, page, live[static_cast<std::size_t>(page)]);
    if (!columns || encoded[static_cast<std::size_t>(page)]) continue;
    const column_array side = cache.column(layer, 0);
    for (int h = 0; h < rows.heads; ++h) std::memset(side.at(page, h), 0xff, static_cast<std::size_t>(side.pitch));
  }
  return pages - std::count(live.begin(), live.end(), 0);
}

}  // namespace kvx::test
