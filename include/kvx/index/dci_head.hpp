#pragma once
// Where the rows and the columns of one KV head of one sequence lie, for an index of semantic pages.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstdint>

namespace kvx {

/// All that is kept of one KV head of one sequence in one layer. Trivially copyable.
///
/// members, means, links, places, codes   the columns of the layer, see dci_column; null data where the index has none
/// pages         logical page j: its rows lie under the id pages[j]
/// column_pages  and its columns under column_pages[j]: the same ids but for external layouts
/// sink          tokens at the start that are attended anyway: whole pages, in no semantic page and not in the tree
/// finite_values a token whose value cannot be averaged (can_be_averaged) is never found, like one whose key cannot be
template <class E>
struct dci_head {
  row_view<const E> rows;
  column_array members;
  column_array means;
  column_array links;
  const std::int32_t* pages = nullptr;
  const std::int32_t* column_pages = nullptr;
  std::int64_t head = 0;
  std::int64_t sink = 0;
  bool finite_values = false;
  column_array places = {};
  column_array codes = {};

  KVX_HD constexpr const E* key(std::int64_t token) const {
    return rows.key.at(pages[token / rows.page_tokens], head, token % rows.page_tokens);
  }
  KVX_HD constexpr const E* value(std::int64_t token) const {
    return rows.value.at(pages[token / rows.page_tokens], head, token % rows.page_tokens);
  }
  KVX_HD constexpr packed_page packed(const dci_shape& s, std::int64_t page) const {
    return {members.at(column_pages[page], head), rows.page_tokens, packed_page::entry_bytes(s)};
  }
  KVX_HD bf16* mean_of(std::int64_t page) const { return reinterpret_cast<bf16*>(means.at(column_pages[page], head)); }
  KVX_HD std::int32_t* links_of(std::int64_t page) const { return reinterpret_cast<std::int32_t*>(links.at(column_pages[page], head)); }

  /// Where the token in a slot stands.   (lines)
  KVX_HD float* places_of(std::int64_t page, std::int64_t slot, int lines) const {
    return reinterpret_cast<float*>(places.at(column_pages[page], head)) + slot * lines;
  }

  /// The semantic page that holds a token of an indexed block, under its logical id.
  KVX_HD constexpr std::int64_t semantic_page(const dci_shape& s, std::int64_t token) const {
    const std::int64_t P = rows.page_tokens, first = token / s.block * (s.block / P);
    return first + packed(s, token / P).place(static_cast<int>(token % P));
  }
};

}  // namespace kvx
