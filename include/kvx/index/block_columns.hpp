#pragma once
// The columns of a cache whose index packs blocks of tokens: those of the tree, of a sketch of the keys, of the queries and of the values.

#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/sketch/value_code.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// An index that packs whole blocks of tokens.
template <class Index>
concept packs_blocks = requires {
  { Index::shape.block } -> std::convertible_to<int>;
  { Index::shape.pack };
};

/// Whether a cache learns the metric of a packing from the queries that it sees.
KVX_HD constexpr bool learns_metric(const dci_shape& s) { return s.by != dci_shape::metric::keys; }

/// What is kept of the values of semantic pages, where tokens take part whose rows are not read.
///
/// value_bits  of a coordinate; 0: means alone, if any
/// means       whether anything is kept: of each page, the mean of its members' values
struct page_value_shape {
  int value_bits = 0;
  bool means = false;
};

/// Columns in this order: the tree's, the sketch's, the queries', the values'. Those that a composition has not have blocks of 0 bytes.
///
/// what        values lie by member: slot i of page j is its member i, coded relative to the mean of the page's members (value_code.hpp)
inline constexpr int first_code_column = static_cast<int>(dci_column_count);
inline constexpr int query_column = first_code_column + static_cast<int>(sketch_column_count);
inline constexpr int first_page_value_column = query_column + 1;
inline constexpr int block_column_count = first_page_value_column + static_cast<int>(value_column_count);

/// coded       whether a sketch of the keys is kept
constexpr std::array<column, block_column_count> block_columns(const dci_shape& shape, bool coded, const key_sketch& sketch,
                                                               page_value_shape values, page_shape page) {
  std::array<column, block_column_count> result;
  const std::array<column, dci_column_count> tree = dci_columns(shape, page);
  for (std::size_t c = 0; c < tree.size(); ++c) result[c] = tree[c];
  if (coded) {
    for (int c = 0; c < sketch_column_count; ++c)
      result[std::size_t{first_code_column} + static_cast<std::size_t>(c)].block_bytes =
          block_bytes(sketch, page, static_cast<sketch_column>(c));
  }
  if (values.means) {
    for (int c = 0; c < value_column_count; ++c)
      result[std::size_t{first_page_value_column} + static_cast<std::size_t>(c)].block_bytes =
          value_block_bytes(values.value_bits, page, static_cast<value_column>(c));
    if (!keeps_means(shape)) result[column_member_means].block_bytes = std::int64_t{2} * page.key_dim;
  }
  if (learns_metric(shape)) result[query_column].block_bytes = energy_column::block_bytes(page.tokens, page.key_dim);
  return result;
}

/// The columns of one layer.
using block_column_arrays = std::array<column_array, block_column_count>;

/// One KV head of one sequence, as the index reads and fills it.
template <class E>
dci_head<E> tree_head(const row_view<const E>& rows, const block_column_arrays& side, const std::int32_t* pages,
                      const std::int32_t* column_pages, std::int64_t head, std::int64_t sink) {
  const bool finite_values = side[std::size_t{first_page_value_column} + value_means].data != nullptr;
  return {rows, side[column_members], side[column_member_means], side[column_links],     pages, column_pages, head,
          sink, finite_values,        side[column_places],       side[column_mean_codes]};
}

constexpr key_columns codes_of(const block_column_arrays& side) {
  key_columns result;
  for (std::size_t c = 0; c < result.size(); ++c) result[c] = side[std::size_t{first_code_column} + c];
  return result;
}

constexpr value_columns page_values_of(const block_column_arrays& side) {
  value_columns result;
  for (std::size_t c = 0; c < result.size(); ++c) result[c] = side[std::size_t{first_page_value_column} + c];
  return result;
}

constexpr energy_column energies_of(const block_column_arrays& side, page_shape page) {
  return {side[query_column], page.key_dim, page.tokens};
}

}  // namespace kvx
