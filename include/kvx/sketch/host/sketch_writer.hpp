#pragma once
// The columns of a key sketch as a cache has them filled: one page of one KV head at a time.

#include <kvx/backend/host.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// An encoder in the form that a cache calls for pages that enter the retrieval zone.
template <element E>
struct sketch_writer {
  key_encoder<E> encoder;
};

/// Encodes the keys of one page. Rows and columns may lie under different page ids.
///
/// shapes      blocks: see sketch_column; null where the sketch has no such column; balance (D) or null
template <element E>
void encode_page(const host&, const sketch_writer<E>& writer, const row_view<const E>& rows, std::int64_t page, int head,
                 const std::array<std::byte*, sketch_column_count>& blocks, const float* balance) {
  page_code<true> code;
  code.signs = reinterpret_cast<std::uint8_t*>(blocks[column_signs]);
  code.norms = reinterpret_cast<std::uint8_t*>(blocks[column_norms]);
  code.means = reinterpret_cast<bf16*>(blocks[column_means]);
  code.magnitudes = reinterpret_cast<std::uint8_t*>(blocks[column_magnitudes]);
  code.weights = reinterpret_cast<half*>(blocks[column_weights]);
  encode_page(writer.encoder, rows.key.at(page, head, 0), rows.key.slot_stride, rows.page_tokens, balance, code);
}

}  // namespace kvx
