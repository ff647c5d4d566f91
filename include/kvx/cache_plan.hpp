#pragma once
// From a geometry to memory: groups of layers, pages of each group, bytes of each array. Nothing is built here.

#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvx {

/// Bytes that a cache reserves when it is built. Host memory is touched, and counted by the system, only as rows are written.
struct cache_bytes {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t tables = 0;  ///< reference counts and page tables
  std::int64_t slots = 0;   ///< near copies of far rows, and what finds them
  std::int64_t selections = 0;  ///< index.reuse: what is kept for other layers and steps; on the host it comes with the sequences
  std::int64_t far = 0;     ///< rows in page-locked host memory
  std::int64_t near() const { return rows + columns + tables + slots + selections; }
  std::int64_t total() const { return near() + far; }
};

/// Layers that share page ids.
struct layer_group {
  page_rules rules;
  std::int64_t units = 0;
  int layers = 0;
  int retrieving = 0;  ///< of these layers, those that have columns
  std::int64_t near_pages = 0;  ///< frames of rows of these, where their rows may lie far; 0: all rows are near
  std::int64_t far_pages = 0;
  std::int64_t pages() const { return units * rules.unit_pages; }
  std::int64_t row_pages(bool retrieves) const { return retrieves && near_pages > 0 ? near_pages : pages(); }
};

/// Groups of a cache, and which group each layer belongs to.
struct cache_plan {
  std::vector<layer_group> groups;
  std::vector<int> group_of;  // (layers)
  cache_bytes bytes;
};

/// Units of a group: a paged pool holds all tokens and one partly filled page a sequence; a window holds what its queries see.
template <class Layout>
std::int64_t units_of(const geometry& g, const page_rules& rules) {
  if constexpr (!Layout::shares_pages) {
    return g.max_sequences;
  } else {
    const std::int64_t all = rules.units(g.max_tokens) + g.max_sequences;
    if (rules.window == 0) return all;
    if (rules.window > g.max_tokens || rules.sink > g.max_tokens) return all;
    const std::int64_t seen = rules.units(rules.window + rules.rollback) + rules.units(rules.sink) + 2;
    return std::min(all, g.max_sequences * seen + rules.units(g.step_tokens()));
  }
}

/// Far frames beside so many near ones: for all other pages, and for those that one step brings near before others can leave it.
inline std::int64_t far_frames(const geometry& g, const page_rules& rules, const zones& by, std::int64_t pages, std::int64_t near) {
  if (near >= pages) return 0;
  const std::int64_t returning = g.max_sequences * (rules.pages(by.sink) + rules.pages(std::max(by.first, by.unit) + by.local) + 2);
  return pages - near + std::min(near, returning);
}

/// The plan of a cache of this layout and these columns; throws a usage_error where the geometry breaks a limit.
///
/// spills      the backend reads far rows, and the layout asks for them; by: the zones of the composition
template <class Layout, class Columns>
cache_plan plan(const geometry& g, const Columns& columns, call_site where, bool spills = false, const zones& by = {}) {
  check(g, where);
  require(offloads<Layout>() || g.near_tokens == 0,
          "geometry.near_tokens: only a layout with placement::offload_uva or offload_bulk has rows elsewhere", where);
  cache_plan result;
  const std::int64_t tokens = Layout::shape.tokens;
  const std::int64_t unit_pages = Layout::shares_pages ? 1 : ceil_div(ceil_div(g.max_tokens, g.max_sequences), tokens);
  std::int64_t column_bytes = 0;
  for (const column& c : columns) column_bytes += c.pitch();

  for (int layer = 0; layer < g.layers; ++layer) {
    const layer_kind kind = g.kind(layer);
    const bool window = kind.sees == layer_kind::attention::window;
    const page_rules rules{
        tokens, unit_pages, window ? kind.tokens : 0, window ? kind.sink : 0, window ? g.rollback : 0, Layout::shares_pages};
    auto group = std::find_if(result.groups.begin(), result.groups.end(), [&](const layer_group& other) {
      return other.rules.window == rules.window && other.rules.sink == rules.sink;
    });
    if (group == result.groups.end()) {
      group = result.groups.insert(group, {rules, units_of<Layout>(g, rules), 0, 0});
      require_range("pages of a layer", group->pages(), 1, std::numeric_limits<std::int32_t>::max(), where);
      result.bytes.tables += group->units * 12 + group->pages() * 12;
      if (spills && !window && Layout::shares_pages) {
        group->near_pages = g.near_tokens > 0 ? std::min(rules.pages(g.near_tokens), group->pages()) : group->pages();
        group->far_pages = far_frames(g, rules, by, group->pages(), group->near_pages);
        result.bytes.tables += group->pages() * 20;
      }
    }
    ++group->layers;
    result.group_of.push_back(static_cast<int>(group - result.groups.begin()));

    using E = typename Layout::element_type;
    const bool retrieves = kind.sees == layer_kind::attention::retrieve;
    const std::int64_t rows = Layout::owns_rows ? row_bytes<E>(Layout::shape, group->row_pages(retrieves), g.kv_heads) : 0;
    const std::int64_t far = retrieves ? row_bytes<E>(Layout::shape, group->far_pages, g.kv_heads) : 0;
    group->retrieving += retrieves ? 1 : 0;
    const std::int64_t side = retrieves ? checked_product(checked_product(group->pages(), g.kv_heads), column_bytes) : 0;
    constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 2;
    require(rows >= 0 && far >= 0 && side >= 0 && far < limit - result.bytes.far && rows < limit - result.bytes.rows &&
                side < limit - result.bytes.columns,
            "geometry: the cache would need more than 2^62 bytes", where);
    result.bytes.rows += rows;
    result.bytes.far += far;
    if (far > 0) {
      scratch_parts slots;
      place_hot_rows<E>(slots, g.kv_heads, g.hot_rows, group->far_pages * tokens, pitch_of<E>(Layout::shape).row);
      result.bytes.slots += slots.used;
    }
    result.bytes.columns += side;
  }
  return result;
}

}  // namespace kvx
