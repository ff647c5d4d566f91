#pragma once
// From a geometry to memory: groups of layers, pages of each group, bytes of each array. Nothing is built here.

#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/geometry.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_table.hpp>

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
  std::int64_t total() const { return rows + columns + tables; }
};

/// Layers that share page ids.
struct layer_group {
  page_rules rules;
  std::int64_t units = 0;
  int layers = 0;
  int retrieving = 0;  ///< of these layers, those that have columns
  std::int64_t pages() const { return units * rules.unit_pages; }
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

/// The plan of a cache of this layout and these columns; throws a usage_error where the geometry breaks a limit.
template <class Layout, class Columns>
cache_plan plan(const geometry& g, const Columns& columns, call_site where) {
  check(g, where);
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
    }
    ++group->layers;
    result.group_of.push_back(static_cast<int>(group - result.groups.begin()));

    using E = typename Layout::element_type;
    const std::int64_t rows = Layout::owns_rows ? row_bytes<E>(Layout::shape, group->pages(), g.kv_heads) : 0;
    const bool retrieves = kind.sees == layer_kind::attention::retrieve;
    group->retrieving += retrieves ? 1 : 0;
    const std::int64_t side = retrieves ? checked_product(checked_product(group->pages(), g.kv_heads), column_bytes) : 0;
    constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 2;
    require(rows >= 0 && side >= 0 && rows < limit - result.bytes.rows && side < limit - result.bytes.columns,
            "geometry: the cache would need more than 2^62 bytes", where);
    result.bytes.rows += rows;
    result.bytes.columns += side;
  }
  return result;
}

}  // namespace kvx
