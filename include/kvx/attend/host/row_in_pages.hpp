#pragma once
// Where a token stands in the semantic pages of its block.

#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/host/far_head.hpp>

#include <cstdint>

namespace kvx {

/// For a far_head whose index is a dci_head<E>.
///
/// token       a member that can be found of a block that is packed
/// cost        the member behind `last`: what it has read already; others: a line of the page that the token has in time
template <class E, dci_shape Shape>
semantic_row row_in_pages(const void* index, std::int64_t token, const semantic_row& last, bool with_row) {
  const auto& of = *static_cast<const dci_head<E>*>(index);
  const int offset = static_cast<int>(token % Shape.block);
  if (last.row >= 0 && last.page * of.rows.page_tokens / Shape.block == token / Shape.block) {
    const packed_page members = of.packed(Shape, last.page);
    const int next = last.row + 1;
    if (next < members.count() && members.member(next) == offset) return {last.page, last.id, next};
  }
  const std::int64_t page = of.semantic_page(Shape, token);
  const packed_page members = of.packed(Shape, page);
  int row = 0;
  while (with_row && row + 1 < members.count() && members.member(row) != offset) ++row;
  return {page, of.column_pages[page], with_row || members.member(0) == offset ? row : -1};
}

}  // namespace kvx
