#pragma once
// Slots in near memory for far pages of one layer and KV head that were selected lately.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Which page is in which slot; the slot whose page was selected longest ago is given out first.
///
/// units       a page is whatever its key stands for: a semantic page, or one row
/// cost        every call is O(1) and allocates nothing; 28 bytes a slot
/// exactness   deterministic: the order of selections is that of the calls
class hot_pages {
 public:
  hot_pages() = default;
  explicit hot_pages(std::int32_t slots)
      : slots_(static_cast<std::size_t>(slots)), table_(std::bit_ceil(2 * static_cast<std::size_t>(slots) + 1), none) {
    for (std::int32_t s = 0; s < slots; ++s) link_behind(s);
  }

  std::int32_t slots() const { return static_cast<std::int32_t>(slots_.size()); }

  /// The slot of a page, or -1.
  std::int32_t find(std::int64_t key) const { return table_[entry_of(key)]; }

  /// The page in a slot was selected.
  void select(std::int32_t slot) {
    if (slot == last_) return;
    unlink(slot);
    link_behind(slot);
  }

  /// A slot for a page that has none: that of the page whose selection is the longest ago. It counts as selected.
  std::int32_t take(std::int64_t key) {
    const std::int32_t slot = first_;
    if (at(slot).key >= 0) erase(at(slot).key);
    at(slot).key = key;
    table_[entry_of(key)] = slot;
    select(slot);
    return slot;
  }

  /// What lies in the slot of a page, if it has one, is of no more use.
  void drop(std::int64_t key) {
    const std::int32_t slot = find(key);
    if (slot < 0) return;
    erase(key);
    at(slot).key = -1;
    if (slot == first_) return;
    unlink(slot);
    at(slot).next = first_;
    at(slot).previous = none;
    (first_ != none ? at(first_).previous : last_) = slot;
    first_ = slot;
  }

 private:
  static constexpr std::int32_t none = -1;
  struct entry {
    std::int64_t key = -1;
    std::int32_t next = none;  // in the order of selection
    std::int32_t previous = none;
  };
  entry& at(std::int32_t s) { return slots_[static_cast<std::size_t>(s)]; }
  const entry& at(std::int32_t s) const { return slots_[static_cast<std::size_t>(s)]; }

  void link_behind(std::int32_t s) {
    at(s).next = none;
    at(s).previous = last_;
    (last_ != none ? at(last_).next : first_) = s;
    last_ = s;
  }
  void unlink(std::int32_t s) {
    const entry& of = at(s);
    (of.previous != none ? at(of.previous).next : first_) = of.next;
    (of.next != none ? at(of.next).previous : last_) = of.previous;
  }

  std::size_t mask() const { return table_.size() - 1; }
  std::size_t home(std::int64_t key) const {
    return static_cast<std::size_t>(static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15u >> 32) & mask();
  }
  /// Where the key stands in the table, or would. A table that is at most half full has an empty entry on every way.
  std::size_t entry_of(std::int64_t key) const {
    std::size_t i = home(key);
    while (table_[i] != none && at(table_[i]).key != key) i = (i + 1) & mask();
    return i;
  }
  void erase(std::int64_t key) {
    std::size_t hole = entry_of(key);
    table_[hole] = none;
    for (std::size_t i = (hole + 1) & mask(); table_[i] != none; i = (i + 1) & mask()) {
      const std::size_t wanted = home(at(table_[i]).key);
      if (((i - wanted) & mask()) < ((i - hole) & mask())) continue;  // its home lies behind the hole
      table_[hole] = table_[i];
      table_[i] = none;
      hole = i;
    }
  }

  std::vector<entry> slots_;
  std::vector<std::int32_t> table_;  // slots by key, open addressing
  std::int32_t first_ = none;
  std::int32_t last_ = none;
};

}  // namespace kvx
