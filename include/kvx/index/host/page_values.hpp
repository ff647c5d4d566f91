#pragma once
// The values of semantic pages on the host: their codes, and the mean of each page.

#include <kvx/core/element.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/sketch/host/value_code.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/value_code.hpp>

#include <algorithm>
#include <cstdint>

namespace kvx {

/// Fills the columns of the values of one semantic page that is packed, and takes the keys of tokens that are never found out of the codes.
///
/// what        slot i is member i: its code relative to the mean of the members, by encode_values; a slot without a member that is found
///             has code 0 and scale NaN. A token may be lost for its value alone: what searches read of its key is forgotten here
/// page        logical; its rows and members by `of`
/// keys        the codes of the keys, by position
/// shapes      rows (P, Dv): memory
/// exactness   the same bits from every compiler, flag and instruction set
template <element E>
void encode_page_values(const value_encoder<E>& values, const key_sketch& sketch, const dci_shape& shape, const dci_head<E>& of,
                        std::int64_t page, const key_columns& keys, const value_columns& to, E* rows) {
  const std::int64_t P = of.rows.page_tokens, first = page * P / shape.block * shape.block;
  const int dim = of.rows.value_dim;
  const std::int64_t row_bytes = value_row_bytes(values.bits, dim);
  const packed_page packed = of.packed(shape, page);
  const int count = packed.count();
  for (int i = 0; i < count; ++i) std::copy_n(of.value(first + packed.member(i)), dim, rows + i * dim);
  const page_values<true> out = values_of<true>(to, of.column_pages[page], of.head);
  encode_values(values, rows, dim, count, out);
  if (page * P < of.sink) return;
  for (int i = count; i < of.rows.page_tokens; ++i) {
    const std::int64_t token = first + packed.member(i);
    forget_key(sketch, of.rows.key_dim, of.rows.page_tokens, static_cast<int>(token % P),
               code_of<true>(keys, of.column_pages[token / P], of.head));
    if (values.bits == 0) continue;
    std::fill_n(out.codes + i * row_bytes, row_bytes, std::uint8_t{0});
    out.scales[i] = no_weight;
  }
}

}  // namespace kvx
