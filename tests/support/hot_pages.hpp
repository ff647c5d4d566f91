#pragma once
// Slots for semantic pages, plainly: what the kernel that fetches pages must do, one KV head and one page at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvx::test {

/// Slots of one KV head, in units of a page's rows.
struct hot_pages_reference {
  std::vector<std::vector<std::int64_t>> rows;  // (units, P) the far row in each slot, or -1
  std::vector<int> order;                       // units, that selected longest ago first
  std::int64_t near = 0, hot = 0, far = 0, read = 0;

  hot_pages_reference(int units, int page_tokens) : rows(static_cast<std::size_t>(units)) {
    for (auto& unit : rows) unit.assign(static_cast<std::size_t>(page_tokens), -1);
    for (int u = 0; u < units; ++u) order.push_back(u);
  }

  /// The slot of a far row, or -1.
  int slot_of(std::int64_t row) const {
    for (std::size_t u = 0; u < rows.size(); ++u) {
      const auto at = std::find(rows[u].begin(), rows[u].end(), row);
      if (at != rows[u].end()) return static_cast<int>(u * rows[u].size()) + static_cast<int>(at - rows[u].begin());
    }
    return -1;
  }
  void forget(std::int64_t row) {
    for (auto& unit : rows) std::replace(unit.begin(), unit.end(), row, std::int64_t{-1});
  }

  /// Takes the pages found of all units of a step, one after the other.   pages: far rows of the members of each, -1 for one that is near
  void take(const std::vector<std::vector<std::int64_t>>& pages) {
    std::vector<int> waiting, kept;
    for (const int u : order) {
      const auto& unit = rows[static_cast<std::size_t>(u)];
      const bool selected = std::any_of(pages.begin(), pages.end(), [&](const auto& page) {
        return std::any_of(page.begin(), page.end(),
                           [&](std::int64_t row) { return row >= 0 && std::find(unit.begin(), unit.end(), row) != unit.end(); });
      });
      (selected ? kept : waiting).push_back(u);
    }
    std::size_t given = 0;
    for (const auto& page : pages) {
      std::int64_t all = 0, missing = 0;
      for (const std::int64_t row : page) {
        all += row >= 0;
        missing += row >= 0 && slot_of(row) < 0;
      }
      ++(all == 0 ? near : missing == 0 ? hot : far);
      read += missing;
      if (missing == 0 || given == waiting.size()) continue;
      std::vector<std::int64_t> coming(rows[0].size(), -1);
      for (std::size_t m = 0; m < page.size(); ++m) {
        if (page[m] >= 0 && slot_of(page[m]) < 0) coming[m] = page[m];
      }
      rows[static_cast<std::size_t>(waiting[given++])] = std::move(coming);
    }
    order.assign(waiting.begin() + static_cast<std::ptrdiff_t>(given), waiting.end());
    order.insert(order.end(), kept.begin(), kept.end());
    order.insert(order.end(), waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(given));
  }
};

}  // namespace kvx::test
