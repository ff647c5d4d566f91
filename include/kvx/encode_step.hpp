#pragma once
// What a commit encodes: the pages that its step moves into the retrieval zone, in every layer that retrieves.

#include <kvx/backend/host.hpp>
#include <kvx/entering_pages.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/learned_balance.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Fixes the balances that the step completes and fills the columns of all pages that enter. Nothing of it can be seen before the
/// sequences grow: it may throw.
///
/// accepted    (entries): new tokens that stay; empty: all
/// rows_of, columns_of   (entries): the step as the retrieving layers see it, under page ids of rows and of columns
/// learning    (entries); empty where nothing is learned
template <class Layout, class Writer, class E, std::size_t Columns>
void encode_step(const host& exec, const Writer& writer, const zones& by, std::span<const layer_memory<E, Columns>> layers,
                 const reservation& step, std::span<const std::int64_t> accepted, std::span<const batch_item> rows_of,
                 std::span<const batch_item> columns_of, const balance_book& balances, std::span<learning_entry> learning) {
  const std::vector<entering_page> pages = entering_pages<Layout>(step, by, accepted, columns_of);  // the same in every layer
  std::vector<const float*> diagonals(step.parts.size());
  for (const auto& layer : layers) {
    if (!layer.retrieves) continue;
    for (std::size_t i = 0; i < learning.size(); ++i) {
      const reservation::part& p = step.parts[i];
      diagonals[i] = balances.fix(exec, learning[i], p, accepted.empty() ? p.tokens : accepted[i], layer.ordinal,
                                  row_view<const E>(layer.rows), rows_of[i].pages);
    }
    if (!pages.empty()) encode_pages(exec, writer, layer, pages, rows_of, diagonals);
  }
}

}  // namespace kvx
