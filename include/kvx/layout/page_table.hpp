#pragma once
// The pages of one sequence in one group of layers, and the rules by which they come and go.

#include <kvx/core/bits.hpp>
#include <kvx/layout/page_pool.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace kvx {

/// What the layers of a group have in common. Layers that keep all tokens form one group, layers of equal windows another.
///
/// page_tokens P
/// unit_pages  pages that are allocated together: 1 in a paged layout, a whole slab in a contiguous one
/// window      0: all tokens are kept; else queries see the last `window` tokens and the first `sink`
/// rollback    so many tokens can always be cut off again; window layers free later by as much
/// grows       a sequence takes as many units as it needs; false: it has one, which bounds its length and stays whole
struct page_rules {
  std::int64_t page_tokens = 64;
  std::int64_t unit_pages = 1;
  std::int64_t window = 0;
  std::int64_t sink = 0;
  std::int64_t rollback = 0;
  bool grows = true;

  std::int64_t unit_tokens() const { return page_tokens * unit_pages; }
  std::int64_t pages(std::int64_t tokens) const { return ceil_div(tokens, page_tokens); }
  std::int64_t units(std::int64_t tokens) const { return ceil_div(tokens, unit_tokens()); }

  /// First token that the next query of a sequence of n tokens sees, the sink aside.
  std::int64_t first_seen(std::int64_t n) const { return window > 0 && n + 1 > window ? n + 1 - window : 0; }

  /// First token that a query sees after so many tokens were cut off a sequence of n as can always be, the sink aside.
  std::int64_t first_needed(std::int64_t n) const { return first_seen(n > rollback ? n - rollback : 0); }

  /// First token of the pages that a commit of n tokens leaves a sequence that grows, the sink aside.
  std::int64_t first_left(std::int64_t n) const { return window > 0 && grows ? round_down(first_needed(n), page_tokens) : 0; }
};

/// Pages of one sequence.
///
/// units       what the pool gave, in order; an empty id stands for a page that the window has left behind
/// pages       physical page of each logical page, as kernels read it; -1 where the unit is empty
/// first_kept  every row from here on is there, and so is every row of the sink
struct page_table {
  std::vector<page_id> units;
  std::vector<std::int32_t> pages;
  std::int64_t first_kept = 0;
};

/// True if the last page of a sequence of n tokens must be copied before a row is written behind token n - 1.
inline bool must_copy(const page_pool& pool, const page_rules& rules, const page_table& table, std::int64_t n) {
  return n % rules.unit_tokens() != 0 && pool.is_shared(table.units.back());
}

/// Makes room for tokens [.., n). Requires that the vectors have capacity and the pool free units. New pages that lie wholly before
/// `first_kept`, which counts tokens, and behind the sink are left empty; those that a table has, leave_window frees.
inline void grow(page_pool& pool, const page_rules& rules, page_table& table, std::int64_t n, std::int64_t first_kept = 0) noexcept {
  const std::int64_t sink = rules.pages(rules.sink);
  if (table.units.empty()) table.first_kept = std::max(table.first_kept, first_kept);
  while (std::ssize(table.units) < rules.units(n)) {
    const bool left = rules.grows && std::ssize(table.units) >= sink && (std::ssize(table.units) + 1) * rules.unit_tokens() <= first_kept;
    table.units.push_back(left ? page_id{} : pool.acquire());
  }
  while (std::ssize(table.pages) < rules.pages(n)) {
    const std::int64_t page = std::ssize(table.pages);
    const page_id unit = table.units[static_cast<std::size_t>(page / rules.unit_pages)];
    table.pages.push_back(unit ? static_cast<std::int32_t>(unit.index * rules.unit_pages + page % rules.unit_pages) : -1);
  }
}

/// Pages that `grow` leaves empty.
inline std::int64_t left_empty(const page_rules& rules, const page_table& table, std::int64_t n, std::int64_t first_kept) {
  if (!rules.grows) return 0;
  const std::int64_t first = std::max(rules.pages(rules.sink), static_cast<std::int64_t>(std::ssize(table.units)));
  return std::max<std::int64_t>(std::min(first_kept / rules.page_tokens, rules.pages(n)) - first, 0);
}

/// Puts another unit in the place of one.
inline void put(const page_rules& rules, page_table& table, std::size_t at, page_id unit) noexcept {
  table.units[at] = unit;
  for (std::int64_t i = 0; i < rules.unit_pages; ++i) {
    const auto page = static_cast<std::size_t>(static_cast<std::int64_t>(at) * rules.unit_pages + i);
    if (page < table.pages.size()) table.pages[page] = static_cast<std::int32_t>(unit.index * rules.unit_pages + i);
  }
}

/// Gives back what a sequence of n tokens does not need at its end.
inline void shrink(page_pool& pool, const page_rules& rules, page_table& table, std::int64_t n) noexcept {
  while (static_cast<std::int64_t>(table.units.size()) > rules.units(n)) {
    if (table.units.back()) pool.release(table.units.back());
    table.units.pop_back();
  }
  if (static_cast<std::int64_t>(table.pages.size()) > rules.pages(n)) table.pages.resize(static_cast<std::size_t>(rules.pages(n)));
  if (n <= rules.sink) table.first_kept = 0;
}

/// Frees the pages that no query of a sequence of at least n - rollback tokens can see. Pages shared with the sink stay.
inline void leave_window(page_pool& pool, const page_rules& rules, page_table& table, std::int64_t n) noexcept {
  if (rules.window == 0 || !rules.grows) return;
  const std::int64_t last = rules.first_needed(n) / rules.page_tokens;  // pages [sink pages, last) lie wholly before the cut
  for (std::int64_t page = std::max(rules.pages(rules.sink), table.first_kept / rules.page_tokens); page < last; ++page) {
    page_id& unit = table.units[static_cast<std::size_t>(page)];
    if (unit) pool.release(unit);
    unit = {};
    table.pages[static_cast<std::size_t>(page)] = -1;
  }
  if (last * rules.page_tokens > table.first_kept) table.first_kept = last * rules.page_tokens;
}

/// Shortest positive length to which a sequence can be cut, or forked at, with all rows that its next query sees; lengths up to
/// the sink are always possible.
inline std::int64_t shortest_cut(const page_rules& rules, const page_table& table) {
  return table.first_kept == 0 ? 0 : table.first_kept + rules.window - 1;
}

}  // namespace kvx
