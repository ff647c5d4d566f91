#pragma once
// The paged layout: rows in pages of P tokens from one pool, shared between sequences, copied on write.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>

namespace kvx {

/// Pages [page][head][slot][K then V] of each layer.
///
/// shapes      a page holds `Shape.tokens` consecutive rows of every KV head
/// units       a sequence of n tokens uses ceil(n / P) pages
/// placement   where pages lie that no step has to have near; see placement
/// cost        fork copies nothing; the first append to a shared, partly filled page copies its rows
template <element E, page_shape Shape, zones Zones = zones{}, placement Place = placement::resident>
struct paged {
  static_assert(is_valid(Shape), "page_shape: tokens a power of two up to 65536, key_dim and value_dim 1..576");
  static_assert(Zones.sink >= 0 && Zones.local >= 0, "zones: sink and local are counts of tokens");

  using element_type = E;
  static constexpr page_shape shape = Shape;
  static constexpr kvx::zones zones = Zones;
  static constexpr placement place = Place;
  static constexpr bool shares_pages = true;
  static constexpr bool owns_rows = true;

  /// Addresses of one layer's rows, whose pages begin at `first`.
  static row_view<E> rows(E* first, std::int64_t /*pages*/, int heads) {
    const std::int64_t head_stride = Shape.tokens * pitch_of<E>(Shape).row;
    return rows_at<E>(first, Shape, heads, heads * head_stride, head_stride);
  }
};

}  // namespace kvx
