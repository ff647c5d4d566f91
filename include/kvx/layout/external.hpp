#pragma once
// The external layout: rows stay in pages that the caller owns and writes; the cache keeps lengths, columns and the index.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/zones.hpp>

namespace kvx {

/// Rows in the caller's pages, for engines that have a paged pool of their own.
///
/// use         `bind` names the rows of each layer once (any strides, K and V apart); each entry of `begin` brings the caller's page
///             table of its sequence, the pages of the new tokens included; the caller writes the rows of a layer, then calls
///             append(exec, step, layer)
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

}  // namespace kvx
