#pragma once
// The external layout: rows stay in pages that the caller owns and writes; the cache keeps lengths, columns and the index.

#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>
#include <limits>

namespace kvx {

/// Rows in the caller's pages, for engines that have a paged pool of their own.
///
/// use         `bind` names the rows of each layer (any strides, K and V apart), again whenever the pool moves; each entry of `begin`
///             brings the caller's page table of its sequence, the pages of the new tokens included; the caller writes the rows of a
///             layer, then calls append(exec, step, layer). Forks and truncations go through the cache too, and it is the caller who
///             copies a shared page before writing to it. Pages may get other ids between steps
/// shapes      the caller's pages hold Shape.tokens tokens; tables stay valid until the step is committed or dropped
/// cost        columns alone take memory; they lie under page ids of the cache's own, so a fork shares them and copies on write,
///             whatever the caller does with the rows
template <element E, page_shape Shape, zones Zones = zones{}>
struct external {
  static_assert(is_valid(Shape), "page_shape: tokens a power of two up to 65536, key_dim and value_dim 1..576");
  static_assert(Zones.sink >= 0 && Zones.local >= 0, "zones: sink and local are counts of tokens");

  using element_type = E;
  static constexpr page_shape shape = Shape;
  static constexpr kvx::zones zones = Zones;
  static constexpr bool shares_pages = true;
  static constexpr bool owns_rows = false;
};

/// Throws a usage_error that names what is wrong with the rows that a caller brings for one layer.
///
/// errors      another shape, no rows, or a stride so small that rows overlap: one that was forgotten. How many pages there are, the
///             caller alone knows: neither strides beyond the array nor page tables that point there can be told
template <class E>
void check_rows(const row_view<E>& rows, page_shape shape, int heads, call_site where) {
  require_range("heads of the rows", rows.heads, heads, heads, where);
  require_range("page_tokens of the rows", rows.page_tokens, shape.tokens, shape.tokens, where);
  require_range("key_dim of the rows", rows.key_dim, shape.key_dim, shape.key_dim, where);
  require_range("value_dim of the rows", rows.value_dim, shape.value_dim, shape.value_dim, where);
  require(rows.key.data != nullptr && rows.value.data != nullptr, "bind: rows are null", where);
  const auto apart = [&](std::int64_t stride, int dim) { return stride >= dim || stride <= -dim; };
  const auto distinct = [&](const row_array<E>& x, int dim) {
    return apart(x.page_stride, dim) && (heads == 1 || apart(x.head_stride, dim)) && (shape.tokens == 1 || apart(x.slot_stride, dim));
  };
  require(distinct(rows.key, shape.key_dim), "bind: a stride of the keys is less than key_dim: rows would overlap", where);
  require(distinct(rows.value, shape.value_dim), "bind: a stride of the values is less than value_dim: rows would overlap", where);
}

/// An entry under the page ids of the caller's table; a usage_error where the table is too short.
inline batch_item external_item(batch_item item, const advance& entry, std::int64_t page_tokens, call_site where) {
  require_range("size of an entry's page table", static_cast<std::int64_t>(entry.pages.size()), ceil_div(item.length, page_tokens),
                std::numeric_limits<std::int32_t>::max(), where);
  item.pages = entry.pages.data();
  return item;
}

/// Throws a usage_error where the caller's table has no page for rows that the new tokens of an item see in a group of layers.
inline void check_seen_pages(const page_rules& rules, const batch_item& item, call_site where) {
  const std::int64_t first = rules.first_seen(item.length - item.queries) / rules.page_tokens, sink = rules.pages(rules.sink);
  for (std::int64_t page = 0; page < rules.pages(item.length); ++page) {
    if (page < sink || page >= first)
      require(item.pages[page] >= 0, "begin: a page that the new tokens see is negative in its table", where);
  }
}

}  // namespace kvx
