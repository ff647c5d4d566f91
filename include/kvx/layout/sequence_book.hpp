#pragma once
// All sequences of a cache: their lengths and page tables, and the operations that never leave them half changed.

#include <kvx/core/check.hpp>
#include <kvx/layout/page_pool.hpp>
#include <kvx/layout/page_table.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvx {

/// A handle to one sequence of one cache. Closing makes every copy of it stale; stale and foreign handles are refused.
struct sequence {
  std::uint32_t cache = 0;
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;

  friend bool operator==(const sequence&, const sequence&) = default;
};

/// One entry of a ragged batch: `tokens` new tokens of a sequence; 0 is allowed.
///
/// pages       external layouts only: the caller's page table of the sequence, the pages of the new tokens included
/// first_kept  (groups of layers): new rows before these tokens, multiples of a page, are not there and never asked for, the sink aside:
///             rows come from a store. Empty: all are there. Of a sequence with tokens, no more than its windows leave behind
struct advance {
  sequence of;
  std::int64_t tokens = 0;
  std::span<const std::int32_t> pages = {};
  std::span<const std::int64_t> first_kept = {};
};

/// Units [first, last) of one sequence in one group of layers.
struct unit_range {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Both ranges, and what lies between them.
constexpr unit_range hull(unit_range a, unit_range b) {
  if (a.first >= a.last) return b;
  if (b.first >= b.last) return a;
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}

/// Rows [0, rows) of a unit to be copied to another before anything is written to it.
struct page_copy {
  int group = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int64_t rows = 0;
};

/// A batch whose rows are reserved: what `commit` or `roll_back` need to finish it.
struct reservation {
  struct part {
    std::uint32_t slot = 0;
    std::int64_t length = 0;  ///< committed tokens before the step
    std::int64_t tokens = 0;  ///< new ones
    std::int64_t first = 0;   ///< row of the batch that belongs to the first new token
  };
  /// A whole page that an entry shares and must own: a copy stands for it in the table.
  struct exchange {
    std::size_t part = 0;
    std::size_t unit = 0;
    page_id shared;
  };
  std::vector<part> parts;
  std::vector<page_id> replaced;  ///< (parts, groups): the shared page that a copy stands for; empty where none was copied
  int own_group = 0;
  std::vector<exchange> exchanged;  ///< in own_group
  std::vector<page_copy> copies;
  std::int64_t tokens = 0;  ///< N, over all parts
};

/// Sequences over groups of layers, each group with its own pool. Holds no rows.
///
/// errors      every call checks its arguments and reserves memory first, and changes state only when nothing can fail any more
/// cost        open, close, fork, truncate: O(pages of the sequence); begin, commit: O(parts x groups) and the pages that change
class sequence_book {
 public:
  struct group {
    page_rules rules;
    page_pool pool;
  };
  static constexpr int all_layers = std::numeric_limits<int>::max();
  struct slot {
    std::uint32_t generation = 0;
    bool open = false;
    bool in_step = false;
    int ready = all_layers;  ///< layers before this one have their rows; the others are being restored
    bool whole() const { return ready == all_layers; }
    std::int64_t length = 0;
    std::vector<page_table> tables;  // (groups)
  };

  sequence_book(std::vector<group> groups, int max_sequences);

  std::span<const group> groups() const { return groups_; }
  std::span<const slot> slots() const { return slots_; }

  /// The slot of a handle that is open in this cache; else a usage_error.
  const slot& find(sequence handle, call_site where) const;

  /// The slot's number of a sequence that may be closed, or cut to `tokens`; what those throw otherwise.
  std::uint32_t closable(sequence handle, call_site where) const;
  std::uint32_t cuttable(sequence handle, std::int64_t tokens, call_site where) const;

  sequence open(call_site where);
  void close(sequence handle, call_site where);

  /// A sequence of the first `tokens` tokens of another. Pages are shared where `share`; else the list says what to copy.
  sequence fork(sequence handle, std::int64_t tokens, bool share, std::vector<page_copy>& copies, call_site where);
  void truncate(sequence handle, std::int64_t tokens, call_site where);

  /// Reserves rows for all parts or throws and changes nothing.
  ///
  /// own         which units of a part must not be shared in `own_group`, and are copied
  using own_units = std::function<unit_range(const reservation::part&)>;
  reservation begin(std::span<const advance> batch, int own_group, const own_units& own, call_site where);

  /// Part i keeps its first accepted[i] new tokens (all where the span is empty); the rest is given back.
  void commit(const reservation& step, std::span<const std::int64_t> accepted) noexcept;
  void roll_back(const reservation& step) noexcept;

  /// The first `layers` layers of a sequence have their rows.
  void set_ready(std::uint32_t i, int layers) noexcept { slots_[i].ready = layers; }

 private:
  std::uint32_t vacant(call_site where) const;
  void check_cut(const slot& s, std::int64_t tokens, call_site where) const;
  void restore(const reservation& step, std::size_t part) noexcept;

  inline static std::atomic<std::uint32_t> next_cache_ = 1;  // only tells handles of one cache from those of another
  std::uint32_t cache_ = next_cache_.fetch_add(1);
  std::vector<group> groups_;
  std::vector<slot> slots_;
};

inline sequence_book::sequence_book(std::vector<group> groups, int max_sequences)
    : groups_(std::move(groups)), slots_(static_cast<std::size_t>(max_sequences)) {
  for (slot& s : slots_) s.tables.resize(groups_.size());
}

inline const sequence_book::slot& sequence_book::find(sequence handle, call_site where) const {
  require(handle.cache == cache_ && handle.slot < slots_.size(), "sequence: not a handle of this cache", where);
  const slot& s = slots_[handle.slot];
  require(s.open && s.generation == handle.generation, "sequence: closed", where);
  return s;
}

inline std::uint32_t sequence_book::closable(sequence handle, call_site where) const {
  require(!find(handle, where).in_step, "sequence: has an open step", where);
  return handle.slot;
}

inline std::uint32_t sequence_book::cuttable(sequence handle, std::int64_t tokens, call_site where) const {
  const slot& s = slots_[closable(handle, where)];
  require(s.whole(), "sequence: is being restored: decode all of its layers first", where);
  check_cut(s, tokens, where);
  return handle.slot;
}

inline std::uint32_t sequence_book::vacant(call_site where) const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].open) return static_cast<std::uint32_t>(i);
  }
  throw capacity_error("sequences", 1, 0, where);
}

inline sequence sequence_book::open(call_site where) {
  const std::uint32_t i = vacant(where);
  slots_[i].open = true;
  return {cache_, i, slots_[i].generation};
}

inline void sequence_book::close(sequence handle, call_site where) {
  slot& s = slots_[closable(handle, where)];
  for (std::size_t g = 0; g < groups_.size(); ++g) shrink(groups_[g].pool, groups_[g].rules, s.tables[g], 0);
  s.length = 0;
  s.ready = all_layers;
  s.open = false;
  ++s.generation;
}

inline void sequence_book::check_cut(const slot& s, std::int64_t tokens, call_site where) const {
  require_range("tokens", tokens, 0, s.length, where);
  if (tokens == s.length) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (tokens <= groups_[g].rules.sink) continue;
    const std::int64_t shortest = shortest_cut(groups_[g].rules, s.tables[g]);
    if (tokens < shortest) {
      throw usage_error("tokens is " + std::to_string(tokens) + ": a window layer has freed rows that this length needs; the shortest is " +
                            std::to_string(shortest) + " (geometry.rollback keeps more)",
                        where);
    }
  }
}

inline sequence sequence_book::fork(sequence handle, std::int64_t tokens, bool share, std::vector<page_copy>& copies, call_site where) {
  const slot& source = find(handle, where);
  require(source.whole(), "sequence: is being restored: decode all of its layers first", where);
  check_cut(source, tokens, where);
  const std::uint32_t i = vacant(where);
  slot& target = slots_[i];
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& [rules, pool] = groups_[g];
    if (!share && pool.free() < rules.units(tokens)) throw capacity_error("slabs", rules.units(tokens), pool.free(), where);
    target.tables[g].units.reserve(static_cast<std::size_t>(rules.units(tokens)));
    target.tables[g].pages.reserve(static_cast<std::size_t>(rules.pages(tokens)));
  }
  copies.reserve(groups_.size());

  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& [rules, pool] = groups_[g];
    const page_table& from = source.tables[g];
    page_table& to = target.tables[g];
    to.first_kept = tokens <= rules.sink ? 0 : from.first_kept;
    if (share) {
      for (std::int64_t u = 0; u < rules.units(tokens); ++u) {
        const page_id unit = from.units[static_cast<std::size_t>(u)];
        if (unit) pool.retain(unit);
        to.units.push_back(unit);
      }
      to.pages.assign(from.pages.begin(), from.pages.begin() + rules.pages(tokens));
      shrink(pool, rules, to, tokens);
    } else if (tokens > 0) {
      grow(pool, rules, to, tokens);
      copies.push_back({static_cast<int>(g), from.units[0].index, to.units[0].index, tokens});
    }
  }
  target.length = tokens;
  target.open = true;
  return {cache_, i, target.generation};
}

inline void sequence_book::truncate(sequence handle, std::int64_t tokens, call_site where) {
  slot& s = slots_[cuttable(handle, tokens, where)];
  for (std::size_t g = 0; g < groups_.size(); ++g) shrink(groups_[g].pool, groups_[g].rules, s.tables[g], tokens);
  s.length = tokens;
}

/// Capacity for `size` entries; more than asked for where the vector grows, so that tables grow in constant time a page.
template <class T>
void make_room(std::vector<T>& entries, std::int64_t size) {
  const auto needed = static_cast<std::size_t>(size);
  if (needed > entries.capacity()) entries.reserve(std::max(needed, 2 * entries.capacity()));
}

inline reservation sequence_book::begin(std::span<const advance> batch, int own_group, const own_units& own, call_site where) {
  reservation step;
  step.own_group = own_group;
  step.parts.reserve(batch.size());
  std::vector<bool> named(slots_.size());
  for (const advance& a : batch) {
    const slot& s = slots_[closable(a.of, where)];
    require_range("tokens of a batch entry", a.tokens, 0, std::int64_t{1} << 40, where);
    require(!named[a.of.slot], "batch: names a sequence twice", where);
    require(a.first_kept.empty() || a.first_kept.size() == groups_.size(), "batch: first_kept names each group of layers", where);
    for (std::size_t g = 0; g < a.first_kept.size(); ++g) {
      require(s.length == 0 || a.first_kept[g] <= groups_[g].rules.first_left(s.length + a.tokens),
              "batch: first_kept is beyond what windows leave behind", where);
    }
    named[a.of.slot] = true;
    step.parts.push_back({a.of.slot, s.length, a.tokens, step.tokens});
    step.tokens += a.tokens;
  }
  step.replaced.resize(step.parts.size() * groups_.size());
  if (own != nullptr) {
    const page_pool& pool = groups_[static_cast<std::size_t>(own_group)].pool;
    const page_rules& rules = groups_[static_cast<std::size_t>(own_group)].rules;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      const auto& p = step.parts[i];
      const page_table& table = slots_[p.slot].tables[static_cast<std::size_t>(own_group)];
      const unit_range range = own(p);
      const std::int64_t whole = std::min(range.last, p.length / rules.unit_tokens());  // a page that is partly filled is copied anyway
      for (auto u = static_cast<std::size_t>(range.first); std::cmp_less(u, whole); ++u) {
        if (pool.is_shared(table.units[u])) step.exchanged.push_back({i, u, table.units[u]});
      }
    }
  }
  step.copies.reserve(step.replaced.size() + step.exchanged.size());
  const auto first_kept = [&](std::size_t i, std::size_t g) { return batch[i].first_kept.empty() ? 0 : batch[i].first_kept[g]; };

  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& [rules, pool] = groups_[g];
    std::int64_t needed = std::cmp_equal(g, own_group) ? std::ssize(step.exchanged) : 0;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
      const auto& p = step.parts[i];
      if (p.tokens == 0) continue;
      const page_table& table = slots_[p.slot].tables[g];
      const std::int64_t left = rules.unit_tokens() - p.length;
      if (!rules.grows && p.tokens > left) throw capacity_error("tokens of a slab", p.tokens, left, where);
      needed += rules.units(p.length + p.tokens) - static_cast<std::int64_t>(table.units.size());
      needed -= left_empty(rules, table, p.length + p.tokens, first_kept(i, g));
      needed += must_copy(pool, rules, table, p.length) ? 1 : 0;
    }
    if (needed > pool.free()) throw capacity_error(rules.grows ? "pages" : "slabs", needed, pool.free(), where);
    for (const auto& p : step.parts) {
      page_table& table = slots_[p.slot].tables[g];
      make_room(table.units, rules.units(p.length + p.tokens));
      make_room(table.pages, rules.pages(p.length + p.tokens));
    }
  }

  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const auto& p = step.parts[i];
    slots_[p.slot].in_step = true;
    if (p.tokens == 0) continue;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& [rules, pool] = groups_[g];
      page_table& table = slots_[p.slot].tables[g];
      if (must_copy(pool, rules, table, p.length)) {
        page_id& last = table.units.back();
        step.replaced[i * groups_.size() + g] = last;
        const page_id copy = pool.acquire();
        step.copies.push_back({static_cast<int>(g), last.index, copy.index, p.length % rules.unit_tokens()});
        last = copy;
        table.pages.back() = copy.index;
      }
      grow(pool, rules, table, p.length + p.tokens, first_kept(i, g));
    }
  }
  auto& [rules, pool] = groups_[static_cast<std::size_t>(own_group)];
  for (const auto& e : step.exchanged) {
    const page_id copy = pool.acquire();
    step.copies.push_back({own_group, e.shared.index, copy.index, rules.unit_tokens()});
    put(rules, slots_[step.parts[e.part].slot].tables[static_cast<std::size_t>(own_group)], e.unit, copy);
  }
  return step;
}

inline void sequence_book::commit(const reservation& step, std::span<const std::int64_t> accepted) noexcept {
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const auto& p = step.parts[i];
    const std::int64_t kept = accepted.empty() ? p.tokens : accepted[i];
    if (kept == 0) {
      restore(step, i);
      continue;
    }
    for (const auto& e : step.exchanged) {
      if (e.part == i) groups_[static_cast<std::size_t>(step.own_group)].pool.release(e.shared);
    }
    slot& s = slots_[p.slot];
    s.length = p.length + kept;
    s.in_step = false;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& [rules, pool] = groups_[g];
      if (const page_id shared = step.replaced[i * groups_.size() + g]) pool.release(shared);
      shrink(pool, rules, s.tables[g], s.length);
      leave_window(pool, rules, s.tables[g], s.length);
    }
  }
}

inline void sequence_book::roll_back(const reservation& step) noexcept {
  for (std::size_t i = 0; i < step.parts.size(); ++i) restore(step, i);
}

inline void sequence_book::restore(const reservation& step, std::size_t part) noexcept {
  const auto& p = step.parts[part];
  slot& s = slots_[p.slot];
  s.in_step = false;
  for (const auto& e : step.exchanged) {
    if (e.part != part) continue;
    auto& [rules, pool] = groups_[static_cast<std::size_t>(step.own_group)];
    page_table& table = s.tables[static_cast<std::size_t>(step.own_group)];
    pool.release(table.units[e.unit]);
    put(rules, table, e.unit, e.shared);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& [rules, pool] = groups_[g];
    page_table& table = s.tables[g];
    shrink(pool, rules, table, p.length);
    if (const page_id shared = step.replaced[part * groups_.size() + g]) {
      pool.release(table.units.back());
      table.units.back() = shared;
      table.pages.back() = shared.index;
    }
  }
}

}  // namespace kvx
