#pragma once
// Which pages are free, and how many sequences use each of the others.

#include <kvx/core/check.hpp>

#include <cassert>
#include <cstdint>
#include <vector>

namespace kvx {

/// A page of the pool, as it is at one time of its life: the same index given out again has another generation.
struct page_id {
  std::int32_t index = -1;
  std::uint32_t generation = 0;

  explicit operator bool() const { return index >= 0; }
  friend bool operator==(const page_id&, const page_id&) = default;
};

/// Reference counts and the free list of `size` pages. Holds no rows: those lie wherever the page index points to.
///
/// cost        every call is O(1) and allocates nothing; 12 bytes a page
/// exactness   deterministic: the page freed last is given out first, then pages never used, in ascending order, so that memory
///             which was touched is touched again before new memory is
/// errors      a page id of another generation is a defect of the caller: asserted
class page_pool {
 public:
  explicit page_pool(std::int64_t size) : pages_(static_cast<std::size_t>(size)), recycled_(static_cast<std::size_t>(size)) {}

  std::int64_t size() const { return static_cast<std::int64_t>(pages_.size()); }
  std::int64_t used() const { return used_; }
  std::int64_t free() const { return size() - used_; }
  std::int64_t shared() const { return shared_; }  ///< pages with more than one user

  /// A free page with one user. Requires free() > 0.
  page_id acquire() noexcept {
    assert(free() > 0);
    const std::int32_t index = recycled_count_ > 0 ? recycled_[--recycled_count_] : static_cast<std::int32_t>(touched_++);
    page& p = pages_[static_cast<std::size_t>(index)];
    p.users = 1;
    ++used_;
    return {index, p.generation};
  }

  void retain(page_id id) noexcept {
    if (++at(id).users == 2) ++shared_;
  }

  /// Gives up one use; the last one frees the page, and every copy of its id is stale from then on.
  void release(page_id id) noexcept {
    page& p = at(id);
    if (--p.users == 1) --shared_;
    if (p.users > 0) return;
    ++p.generation;
    --used_;
    recycled_[recycled_count_++] = id.index;
  }

  bool is_shared(page_id id) const noexcept { return at(id).users > 1; }

  /// Whether the id names a page in use.
  bool holds(page_id id) const noexcept {
    if (id.index < 0 || id.index >= size()) return false;
    const page& p = pages_[static_cast<std::size_t>(id.index)];
    return p.users > 0 && p.generation == id.generation;
  }

 private:
  struct page {
    std::uint32_t users = 0;
    std::uint32_t generation = 0;
  };

  page& at(page_id id) noexcept {
    assert(holds(id));
    return pages_[static_cast<std::size_t>(id.index)];
  }
  const page& at(page_id id) const noexcept {
    assert(holds(id));
    return pages_[static_cast<std::size_t>(id.index)];
  }

  std::vector<page> pages_;
  std::vector<std::int32_t> recycled_;  // a stack of recycled_count_ entries
  std::size_t recycled_count_ = 0;
  std::int64_t touched_ = 0;  // pages [touched_, size) were never given out
  std::int64_t used_ = 0;
  std::int64_t shared_ = 0;
};

}  // namespace kvx
