#pragma once
// The columns of keys and values as a cache has them filled where tokens take part by their codes: one page of one KV head at a time.

#include <kvx/backend/host.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/host/value_code.hpp>
#include <kvx/sketch/value_code.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Encoders of keys and values in the form that a cache calls for pages that enter the retrieval zone.
template <element E>
struct tiered_writer {
  key_encoder<E> keys;
  value_encoder<E> values;
};

/// Encodes keys and values of one page. Rows and columns may lie under different page ids.
///
/// what        a token whose value is not finite gets the key code of one that is never found: no tier reads it
/// shapes      blocks: see sketch_column, value_column; null where there is no such column; balance (D) or null
template <element E>
void encode_page(const host&, const tiered_writer<E>& writer, const row_view<const E>& rows, std::int64_t page, int head,
                 const std::array<std::byte*, tiered_column_count>& blocks, const float* balance) {
  page_code<true> code;
  code.signs = reinterpret_cast<std::uint8_t*>(blocks[column_signs]);
  code.norms = reinterpret_cast<std::uint8_t*>(blocks[column_norms]);
  code.means = reinterpret_cast<bf16*>(blocks[column_means]);
  code.magnitudes = reinterpret_cast<std::uint8_t*>(blocks[column_magnitudes]);
  code.weights = reinterpret_cast<half*>(blocks[column_weights]);
  page_values<true> values;
  values.codes = reinterpret_cast<std::uint8_t*>(blocks[first_value_column + value_codes]);
  values.scales = reinterpret_cast<half*>(blocks[first_value_column + value_scales]);
  values.means = reinterpret_cast<bf16*>(blocks[first_value_column + value_means]);
  encode_page(writer.keys, rows.key.at(page, head, 0), rows.key.slot_stride, rows.page_tokens, balance, code);
  encode_values(writer.values, rows.value.at(page, head, 0), rows.value.slot_stride, rows.page_tokens, values);
  const int dim = writer.values.encoder.dim;
  for (int t = 0; t < rows.page_tokens; ++t) {
    const E* const row = rows.value.at(page, head, t);
    const bool finite = values.scales != nullptr ? !is_nan(to_float(values.scales[t]))
                                                 : std::all_of(row, row + dim, [](E x) { return to_float(x) - to_float(x) == 0; });
    if (!finite) forget_key(writer.keys.sketch, writer.keys.dim, rows.page_tokens, t, code);
  }
}

}  // namespace kvx
