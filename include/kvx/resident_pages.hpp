#pragma once
// Pages of a sequence that a step of it reads or writes whatever it retrieves.

#include <kvx/cache_parts.hpp>
#include <kvx/layout/page_pool.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace kvx {

/// Adds the pages with sinks, recent tokens and tokens behind a committed length.
///
/// group       of layers, that of the table
template <class Spec>
void add_residents(const cache_parts<Spec>& of, std::size_t group, const page_table& table, std::int64_t length, std::vector<page_id>& to) {
  constexpr std::int64_t tokens = Spec::layout_type::shape.tokens;
  const std::int64_t pages = std::ssize(table.units), sinks = std::min(pages, of.plan.groups[group].rules.pages(Spec::zones.sink));
  const std::int64_t recent = edge(Spec::zones, length, tokens) / tokens;
  for (std::int64_t page = 0; page < pages; ++page) {
    if (page == sinks && page < recent) page = recent;
    if (page < pages && table.units[static_cast<std::size_t>(page)]) to.push_back(table.units[static_cast<std::size_t>(page)]);
  }
}

}  // namespace kvx
