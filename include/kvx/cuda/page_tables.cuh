#pragma once
// The page tables of a cache's sequences as kernels read them: copies in device memory, brought up to date where they differ.

#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvx {

/// For each sequence slot and group of layers the table that the device has, and what it holds.
///
/// use         `plan` all tables of a step, upload the pieces, then `accept`; without `accept` nothing is taken to have arrived
/// cost        one comparison of each table with the last one; what is uploaded is from the first page that differs to the last
class device_page_tables {
 public:
  device_page_tables() = default;
  device_page_tables(std::size_t groups, std::size_t slots) : groups_(groups), tables_(groups * slots) {}

  /// The address of the table, whose pages will be `now` once the pieces have arrived.
  const std::int32_t* plan(const device& exec, std::size_t group, std::size_t slot, const std::vector<std::int32_t>& now,
                           std::vector<upload_piece>& pieces) {
    table& t = tables_[slot * groups_ + group];
    if (std::ssize(now) > t.capacity) {
      const std::int64_t capacity = std::max<std::int64_t>({std::ssize(now), 2 * t.capacity, 16});
      t.memory.free_behind(exec.stream);
      t.memory = allocate(exec, capacity * 4);
      t.capacity = capacity;
      t.pages.clear();
    }
    t.pages.reserve(now.size());
    auto* const to = reinterpret_cast<std::int32_t*>(t.memory.data());
    const std::size_t both = std::min(now.size(), t.pages.size());
    const auto first = static_cast<std::size_t>(
        std::mismatch(now.begin(), now.begin() + static_cast<std::ptrdiff_t>(both), t.pages.begin()).first - now.begin());
    std::size_t last = now.size();
    if (now.size() <= t.pages.size()) {
      while (last > first && now[last - 1] == t.pages[last - 1]) --last;
    }
    if (first == last) return to;
    pieces.push_back({to + first, now.data() + first, static_cast<std::int64_t>(last - first) * 4});
    changes_.push_back({&t, &now});
    return to;
  }

  /// What was planned since the last call has been enqueued.
  void accept() noexcept {
    for (const auto& [t, now] : changes_) t->pages.assign(now->begin(), now->end());  // there is room
    changes_.clear();
  }
  void forget() noexcept { changes_.clear(); }

 private:
  struct table {
    device_block memory;
    std::int64_t capacity = 0;
    std::vector<std::int32_t> pages;
  };
  std::size_t groups_ = 0;
  std::vector<table> tables_;  // (slots, groups)
  std::vector<std::pair<table*, const std::vector<std::int32_t>*>> changes_;
};

}  // namespace kvx
