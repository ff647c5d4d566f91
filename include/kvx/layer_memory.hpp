#pragma once
// What a cache holds for each layer: addresses of its rows and columns inside the one block of memory that it owns.

#include <kvx/cache_plan.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/row_view.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace kvx {

template <class E>
struct far_layer;

/// Addresses of one layer.
///
/// group       the group of layers whose page ids it uses
/// far         host: where rows lie that are not near, during an attend; null where all are
/// retrieves   it has columns
/// ordinal     its number among the layers that retrieve
/// row_group   whose table the rows lie under: the group's, or one beside all groups where rows may lie far
/// bound       rows are there: always, but for an external layout that has not been told where they lie
/// writable    likewise, and they were not given as const
template <class E, std::size_t Columns>
struct layer_memory {
  int group = 0;
  int row_group = 0;
  bool retrieves = false;
  int ordinal = 0;
  bool bound = false;
  bool writable = false;

  bool may_be_far() const { return row_group != group; }

  /// Where the rows of an external layout lie.
  template <class T>
  void bind(const row_view<T>& to) {
    rows = to;
    bound = true;
    writable = !std::is_const_v<T>;
  }
  row_view<E> rows;
  far_layer<std::remove_const_t<E>>* far = nullptr;
  std::array<column_array, Columns> side{};
};

/// Rows of an external layout belong to the caller: they are read, never written.
template <class Layout>
using row_element = std::conditional_t<Layout::owns_rows, typename Layout::element_type, const typename Layout::element_type>;

/// Divides plan.bytes.rows + plan.bytes.columns bytes that begin at `first` among the layers.
template <class Layout, std::size_t Columns>
auto place_layers(const geometry& g, const cache_plan& plan, const std::array<column, Columns>& columns, std::byte* first) {
  using E = typename Layout::element_type;
  std::vector<layer_memory<row_element<Layout>, Columns>> layers;
  int retrieving = 0;
  for (int l = 0; l < g.layers; ++l) {
    auto& layer = layers.emplace_back();
    layer.group = plan.group_of[static_cast<std::size_t>(l)];
    layer.retrieves = g.kind(l).sees == layer_kind::attention::retrieve;
    const layer_group& group = plan.groups[static_cast<std::size_t>(layer.group)];
    const std::int64_t pages = group.pages(), near = group.row_pages(layer.retrieves);
    const bool far = group.near_pages > 0 || (offloads_to_file<Layout>() && g.near_tokens > 0);
    layer.row_group = layer.retrieves && far ? static_cast<int>(plan.groups.size()) : layer.group;
    if constexpr (Layout::owns_rows) {
      layer.rows = Layout::rows(reinterpret_cast<E*>(first), near, g.kv_heads);
      layer.bound = layer.writable = true;
      first += row_bytes<E>(Layout::shape, near, g.kv_heads);
    }
    if (!layer.retrieves) continue;
    layer.ordinal = retrieving++;
    for (std::size_t c = 0; const column& of : columns) {
      if (of.block_bytes != 0) {
        layer.side[c] = {first, of.pitch(), g.kv_heads, pages * of.pitch()};
        first += pages * g.kv_heads * of.pitch();
      }
      ++c;
    }
  }
  return layers;
}

}  // namespace kvx
