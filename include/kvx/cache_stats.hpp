#pragma once
// What a cache holds at one moment.

#include <kvx/cache_plan.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <cstdint>

namespace kvx {

/// Counts of one cache; nothing is global.
///
/// units       bytes of pages in use, all layers; a page shared by several sequences counts once
struct cache_stats {
  int sequences = 0;
  std::int64_t tokens = 0;  ///< committed, over all sequences

  std::int64_t pages_total = 0;  ///< over all groups of layers
  std::int64_t pages_used = 0;
  std::int64_t pages_free = 0;
  std::int64_t pages_shared = 0;  ///< used by more than one sequence

  std::int64_t sink_tokens = 0;  ///< tokens by zone, over all sequences, as a retrieving layer sees them
  std::int64_t retrieval_tokens = 0;
  std::int64_t recent_tokens = 0;

  /// Those whose balance was learned from queries of every retrieving layer and head; without, it is 1. On a device queries that are no
  /// numbers count.
  int balanced_sequences = 0;

  std::int64_t row_bytes = 0;     ///< rows in memory near the processor
  std::int64_t column_bytes = 0;  ///< columns, always near
  std::int64_t far_bytes = 0;     ///< rows elsewhere
  std::int64_t rows_copied = 0;  ///< by copies on write and forks of slabs, since the cache was built; K and V of one layer count as one
  std::int64_t slot_bytes = 0;   ///< near copies of far rows that were selected lately
  std::int64_t selection_bytes = 0;  ///< index.reuse: selections that are kept for other layers and steps, of closed sequences too

  std::int64_t selected_near = 0;  ///< on a device, chosen rows since the cache was built, by where they were found: in a near page, in a
  std::int64_t selected_hot = 0;  ///< slot, far; not counted where slots take semantic pages
  std::int64_t selected_far = 0;
  std::int64_t far_wanted =
      0;  ///< far pages (semantic ones, of which rows are far) or far rows that were asked for since the cache was built,
  std::int64_t far_hit = 0;  ///< those that were in slots,
  std::int64_t far_moved = 0;  ///< those that were read,
  std::int64_t far_bytes_moved = 0;  ///< and the bytes read
  double index_seconds = 0;  ///< host::index_ahead: what the cache's thread worked since the cache was built,
  double index_waited_seconds = 0;  ///< and how long callers waited for it
  std::int64_t near_bytes() const { return row_bytes + column_bytes + slot_bytes + selection_bytes; }

  /// Of the far pages or rows that were asked for, the part that was in slots.
  double hit_rate() const { return far_wanted > 0 ? static_cast<double>(far_hit) / static_cast<double>(far_wanted) : 0; }
};

/// Walks sequences and pools. Cost: O(sequences + groups).
template <class Layout, class Columns>
cache_stats count_pages(const geometry& g, const cache_plan& plan, const zones& by, const Columns& columns, const sequence_book& book) {
  cache_stats result;
  for (const sequence_book::slot& s : book.slots()) {
    if (!s.open) continue;
    const std::int64_t sink = std::min<std::int64_t>(by.sink, s.length);
    const std::int64_t end = std::clamp(edge(by, s.length, Layout::shape.tokens), sink, s.length);
    ++result.sequences;
    result.tokens += s.length;
    result.sink_tokens += sink;
    result.retrieval_tokens += end - sink;
    result.recent_tokens += s.length - end;
  }
  std::int64_t column_bytes = 0;
  for (const column& c : columns) column_bytes += c.pitch();
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const page_pool& pool = book.groups()[i].pool;
    const layer_group& group = plan.groups[i];
    const std::int64_t used = pool.used() * group.rules.unit_pages;
    result.pages_total += group.pages();
    result.pages_used += used;
    result.pages_free += group.pages() - used;
    result.pages_shared += pool.shared() * group.rules.unit_pages;
    if constexpr (Layout::owns_rows) {
      result.row_bytes += group.layers * row_bytes<typename Layout::element_type>(Layout::shape, used, g.kv_heads);
    }
    result.column_bytes += group.retrieving * used * g.kv_heads * column_bytes;
  }
  return result;
}

}  // namespace kvx
