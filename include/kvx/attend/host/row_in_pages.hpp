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
template <class E, dci_shape Shape>
inline constexpr semantic_rows rows_in_pages = {[](const void* index, std::int64_t token) {
                                                  const auto& of = *static_cast<const dci_head<E>*>(index);
                                                  return of.column_pages[of.semantic_page(Shape, token)];
                                                },
                                                [](const void* index, std::int64_t token) {
                                                  const auto& of = *static_cast<const dci_head<E>*>(index);
                                                  const packed_page members = of.packed(Shape, of.semantic_page(Shape, token));
                                                  const int offset = static_cast<int>(token % Shape.block);
                                                  int row = 0;
                                                  while (row + 1 < members.count() && members.member(row) != offset) ++row;
                                                  return row;
                                                }};

}  // namespace kvx
