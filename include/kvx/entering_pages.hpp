#pragma once
// The pages that a commit moves into the retrieval zone, and the filling of their columns.

#include <kvx/backend/host.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// One page of one entry of a step: logical page `page` of the sequence, whose columns lie under `id`.
struct entering_page {
  std::size_t entry = 0;
  std::int64_t page = 0;
  std::int32_t id = 0;
};

/// Pages between the edge before the step and the edge after it, each once: forks in one batch may move a page that they share.
///
/// columns_of  (entries): ids under which the columns of retrieving layers lie
template <class Layout>
std::vector<entering_page> entering_pages(const reservation& step, const zones& by, std::span<const std::int64_t> accepted,
                                          std::span<const batch_item> columns_of) {
  constexpr std::int64_t tokens = Layout::shape.tokens;
  std::vector<entering_page> pages;
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const reservation::part& p = step.parts[i];
    const std::int64_t n = p.length + (accepted.empty() ? p.tokens : accepted[i]);
    const std::int64_t end = edge(by, n, tokens) / tokens;
    for (std::int64_t page = edge(by, p.length, tokens) / tokens; page < end; ++page) pages.push_back({i, page, columns_of[i].pages[page]});
  }
  const auto by_id = [](const entering_page& a, const entering_page& b) { return a.id < b.id; };
  std::sort(pages.begin(), pages.end(), by_id);
  const auto same_id = [](const entering_page& a, const entering_page& b) { return a.id == b.id; };
  pages.erase(std::unique(pages.begin(), pages.end(), same_id), pages.end());
  return pages;
}

/// Fills the columns of these pages in one layer.
///
/// writer      the index, or what writes its columns
/// rows_of     (entries): where the rows lie, page by page
/// balances    (entries): diagonals of this layer (H, D), null for none; a writer that has no use for them does not get them
template <class Writer, class E, std::size_t Columns>
void encode_pages(const host& exec, const Writer& writer, const layer_memory<E, Columns>& layer, std::span<const entering_page> pages,
                  std::span<const batch_item> rows_of, std::span<const float* const> balances) {
  for_each_task(exec, static_cast<std::int64_t>(pages.size()) * layer.rows.heads, [&](std::int64_t task) {
    const entering_page& p = pages[static_cast<std::size_t>(task / layer.rows.heads)];
    const int head = static_cast<int>(task % layer.rows.heads);
    std::array<std::byte*, Columns> blocks;
    for (std::size_t c = 0; c < Columns; ++c) blocks[c] = layer.side[c].data != nullptr ? layer.side[c].at(p.id, head) : nullptr;
    const row_view<const E> rows(layer.rows);
    if constexpr (requires { encode_page(exec, writer, rows, std::int32_t{}, head, blocks, balances[p.entry]); }) {
      const float* const all = balances[p.entry];
      encode_page(exec, writer, rows, rows_of[p.entry].pages[p.page], head, blocks, all == nullptr ? all : all + head * rows.key_dim);
    } else {
      encode_page(exec, writer, rows, rows_of[p.entry].pages[p.page], head, blocks);
    }
  });
}

}  // namespace kvx
