#pragma once
// The contiguous layout: each sequence has one slab, in which the rows of a head follow each other.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>

namespace kvx {

/// Rows [head][sequence][token][K then V] of each layer; the pages of one sequence are consecutive, so every reader of pages works.
///
/// shapes      a slab holds max_tokens / max_sequences tokens, rounded up to whole pages
/// cost        no page table look-ups to speak of; fork copies all rows
template <element E, page_shape Shape, zones Zones = zones{}>
struct contiguous {
  static_assert(is_valid(Shape), "page_shape: tokens a power of two up to 65536, key_dim and value_dim 1..576");
  static_assert(Zones.sink >= 0 && Zones.local >= 0, "zones: sink and local are counts of tokens");

  using element_type = E;
  static constexpr page_shape shape = Shape;
  static constexpr kvx::zones zones = Zones;
  static constexpr bool shares_pages = false;
  static constexpr bool owns_rows = true;

  /// Addresses of one layer's rows, whose pages begin at `first`.
  static row_view<E> rows(E* first, std::int64_t pages, int heads) {
    const std::int64_t page_stride = Shape.tokens * pitch_of<E>(Shape).row;
    return rows_at<E>(first, Shape, heads, page_stride, pages * page_stride);
  }
};

}  // namespace kvx
