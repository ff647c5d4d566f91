#pragma once
// Slots for far rows, plainly: what the kernel that fetches rows must do, one KV head and one chosen row at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::test {

/// Slots of one KV head.
struct hot_rows_reference {
  std::vector<std::int64_t> rows;  // (slots) the far row in each, or -1
  std::vector<int> order;          // that selected longest ago first
  std::int64_t hot = 0, far = 0;

  explicit hot_rows_reference(int slots) : rows(static_cast<std::size_t>(slots), -1) {
    for (int s = 0; s < slots; ++s) order.push_back(s);
  }
  int slot_of(std::int64_t row) const {
    const auto at = std::find(rows.begin(), rows.end(), row);
    return at == rows.end() ? -1 : static_cast<int>(at - rows.begin());
  }
  void forget(std::int64_t row) {
    if (slot_of(row) >= 0) rows[static_cast<std::size_t>(slot_of(row))] = -1;
  }

  /// Takes the far rows of all units, one after the other; the slot where each is found, or -1 where it stays far.
  std::vector<int> take(const std::vector<std::int64_t>& chosen) {
    std::vector<int> waiting, kept, found;
    for (const int s : order) {
      const std::int64_t row = rows[static_cast<std::size_t>(s)];
      const bool selected = row >= 0 && std::find(chosen.begin(), chosen.end(), row) != chosen.end();
      (selected ? kept : waiting).push_back(s);
    }
    std::size_t given = 0;
    for (const std::int64_t row : chosen) {
      int s = slot_of(row);
      ++(s >= 0 ? hot : far);
      if (s < 0 && given < waiting.size()) {
        s = waiting[given++];
        rows[static_cast<std::size_t>(s)] = row;
      }
      found.push_back(s);
    }
    order.assign(waiting.begin() + static_cast<std::ptrdiff_t>(given), waiting.end());
    order.insert(order.end(), kept.begin(), kept.end());
    order.insert(order.end(), waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(given));
    return found;
  }
};

}  // namespace kvx::test
