#pragma once
// The columns of a key sketch as kernels take them.

#include <kvx/core/element.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cstdint>

namespace kvx {

/// The columns of one layer, by name: those that are absent have null data. Trivially copyable.
struct code_columns {
  column_array signs;
  column_array norms;
  column_array means;
  column_array magnitudes;
  column_array weights;
};

inline code_columns code_columns_of(const key_columns& columns) {
  return {columns[column_signs], columns[column_norms], columns[column_means], columns[column_magnitudes], columns[column_weights]};
}

/// The code of page `page` of KV head `head`, to be read or written.
template <bool Writes = false>
KVX_HD inline page_code<Writes> code_of(const code_columns& columns, std::int64_t page, std::int64_t head) {
  page_code<Writes> code;
  if (columns.signs.data != nullptr) code.signs = reinterpret_cast<std::uint8_t*>(columns.signs.at(page, head));
  if (columns.norms.data != nullptr) code.norms = reinterpret_cast<std::uint8_t*>(columns.norms.at(page, head));
  if (columns.means.data != nullptr) code.means = reinterpret_cast<bf16*>(columns.means.at(page, head));
  if (columns.magnitudes.data != nullptr) code.magnitudes = reinterpret_cast<std::uint8_t*>(columns.magnitudes.at(page, head));
  if (columns.weights.data != nullptr) code.weights = reinterpret_cast<half*>(columns.weights.at(page, head));
  return code;
}

}  // namespace kvx
