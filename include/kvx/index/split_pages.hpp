#pragma once
// Growth by splits: pages of one KV head that take tokens as they come, and are cut in two when they are full.

#include <kvx/core/check.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Where a token lies; page -1: in none.
struct page_slot {
  std::int32_t page = -1;
  std::int32_t slot = -1;

  friend constexpr bool operator==(const page_slot&, const page_slot&) = default;
};

/// Pages of the cells of a tree, each page a range of its cell along one random direction. A copy is what a fork starts from.
///
/// what        a token joins the page of its cell whose range holds its value, in the first free slot. A full page is cut first: the
///             lower half of its members by (value, position) stays, the upper half moves to a page of its own. Pages that lose
///             their last member go to a free list, from which the latest one is taken first
/// dirty       a page is, from any change of its members until clean(): a copy of it elsewhere is stale
/// cost        a token: the pages of its cell are searched by bisection, P members are moved at most
/// exactness   the same pages for any pieces in which tokens are inserted. After a cut the same tokens are in pages as a straight run
///             would have, but not in the same pages: a page that was cut in two stays so
/// source      IceCache (arXiv 2604.10539) section 3. Blocks that are packed once (dci_shape::block) capture more and leave no slot
///             empty; a cache grows by them alone, since splits change pages that forks share and depend on
///             what was cut before (docs/design.md)
class split_pages {
 public:
  explicit split_pages(int page_tokens, call_site where = call_site::here()) : page_tokens_(page_tokens) {
    require_range("split_pages: page_tokens", page_tokens, 2, 65536, where);
  }

  std::int64_t tokens() const { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t pages() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  page_slot place_of(std::int64_t token) const { return places_[static_cast<std::size_t>(token)]; }
  bool is_dirty(std::int64_t page) const { return at(page).dirty; }
  void clean(std::int64_t page) { at(page).dirty = false; }

  /// Tokens of a page, slot by slot; none of a free one.
  std::span<const std::int32_t> members(std::int64_t page) const { return at(page).members; }

  /// Adds tokens behind those that are held.
  ///
  /// shapes      cells, values (n): whose cell each one joins (its parent; any number that tells cells apart), and where it stands in
  ///             it; a token whose value is NaN joins none
  /// errors      usage_error: shapes that differ, more tokens than 32 bits count; after bad_alloc the pages may only be given up
  void insert(std::span<const std::int32_t> cells, std::span<const float> values, call_site where = call_site::here()) {
    require(cells.size() == values.size(), "split_pages: cells and values must be one a token", where);
    require_range("split_pages: tokens", tokens() + std::ssize(cells), 0, INT32_MAX, where);
    for (std::size_t i = 0; i < cells.size(); ++i) add(cells[i], values[i]);
  }

  /// Keeps the first `tokens` tokens.
  void truncate(std::int64_t tokens, call_site where = call_site::here()) {
    require_range("split_pages: tokens that stay", tokens, 0, this->tokens(), where);
    free_.reserve(pages_.size());  // from here on nothing is thrown
    std::vector<char> touched(pages_.size());
    for (std::int64_t t = tokens; t < this->tokens(); ++t) {
      if (const std::int32_t page = place_of(t).page; page >= 0) touched[static_cast<std::size_t>(page)] = 1;
    }
    for (std::size_t j = pages_.size(); j-- > 0;) {
      if (touched[j] != 0) shrink(static_cast<std::int32_t>(j), tokens);
    }
    places_.resize(static_cast<std::size_t>(tokens));
    values_.resize(static_cast<std::size_t>(tokens));
  }

 private:
  struct held_page {
    std::vector<std::int32_t> members;  // (up to P)
    float low = 0;                      ///< of its range; that of a cell's first page reaches below it
    std::int32_t cell = 0;
    bool dirty = false;
  };
  using held_cell = std::vector<std::int32_t>;  // pages by range

  held_page& at(std::int64_t j) { return pages_[static_cast<std::size_t>(j)]; }
  const held_page& at(std::int64_t j) const { return pages_[static_cast<std::size_t>(j)]; }

  void add(std::int32_t cell_of, float value) {
    places_.push_back({});
    values_.push_back(value);
    if (value != value) return;
    held_cell& pages = cells_[cell_of];
    if (pages.empty()) pages.push_back(take_page(cell_of, value));
    std::size_t i = range_of(pages, value);
    if (std::ssize(at(pages[i]).members) == page_tokens_) {
      split(pages, i);
      if (i + 1 < pages.size() && value >= at(pages[i + 1]).low) ++i;
    }
    put(static_cast<std::int32_t>(tokens() - 1), pages[i]);
  }

  /// The last page whose range begins at or below a value.
  std::size_t range_of(const held_cell& pages, float value) const {
    const auto above = std::upper_bound(pages.begin() + 1, pages.end(), value, [&](float x, std::int32_t j) { return x < at(j).low; });
    return static_cast<std::size_t>(above - pages.begin()) - 1;
  }

  std::int32_t take_page(std::int32_t cell_of, float low) {
    if (free_.empty()) {
      pages_.emplace_back();
      free_.push_back(static_cast<std::int32_t>(pages_.size()) - 1);
    }
    const std::int32_t j = free_.back();
    free_.pop_back();
    held_page& p = at(j);
    p.members.reserve(static_cast<std::size_t>(page_tokens_));
    p.low = low;
    p.cell = cell_of;
    p.dirty = true;
    return j;
  }

  void put(std::int32_t token, std::int32_t j) {
    held_page& p = at(j);
    places_[static_cast<std::size_t>(token)] = {j, static_cast<std::int32_t>(p.members.size())};
    p.members.push_back(token);
    p.dirty = true;
  }

  /// Cuts the full page i of a cell in two.
  void split(held_cell& pages, std::size_t i) {
    const std::int32_t from = pages[i];
    std::vector<std::int32_t> all = at(from).members;
    std::sort(all.begin(), all.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = values_[static_cast<std::size_t>(a)], y = values_[static_cast<std::size_t>(b)];
      return x != y ? x < y : a < b;
    });
    const auto middle = all.begin() + page_tokens_ / 2;
    const std::int32_t to = take_page(at(from).cell, values_[static_cast<std::size_t>(*middle)]);
    pages.insert(pages.begin() + static_cast<std::ptrdiff_t>(i) + 1, to);
    at(from).members.clear();
    for (auto t = all.begin(); t != all.end(); ++t) put(*t, t < middle ? from : to);
  }

  /// Takes the tokens from `tokens` on out of a page.
  void shrink(std::int32_t j, std::int64_t tokens) {
    held_page& p = at(j);
    std::erase_if(p.members, [&](std::int32_t t) { return t >= tokens; });
    for (std::size_t slot = 0; slot < p.members.size(); ++slot)
      places_[static_cast<std::size_t>(p.members[slot])] = {j, static_cast<std::int32_t>(slot)};
    p.dirty = true;
    if (!p.members.empty()) return;
    const auto of = cells_.find(p.cell);
    std::erase(of->second, j);
    if (of->second.empty()) cells_.erase(of);
    free_.push_back(j);
  }

  int page_tokens_;
  std::vector<held_page> pages_;
  std::vector<page_slot> places_;  // (tokens)
  std::vector<float> values_;      // (tokens)
  std::map<std::int32_t, held_cell> cells_;
  std::vector<std::int32_t> free_;
};

}  // namespace kvx
