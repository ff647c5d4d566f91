#pragma once
// Members of semantic pages, as attention in tiers takes them on the device.

#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/tiers.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The members of the pages found for one unit: see tier_unit_members. Plain members: it lies in shared memory.
///
/// found       (pages_found) pages of the sequence, ascending; before (pages_found): members of those before each
/// lists       of the unit's KV head: where the members of each page are listed, `pitch` bytes apart
struct page_tier_unit {
  static constexpr int fewest_untouched = 1;  ///< pages of which nothing is taken out stand for all of their members
  static constexpr bool may_be_unread = true;

  const std::int32_t* slots;
  const std::int32_t* places;
  const std::int32_t* found;
  const std::int32_t* before;
  std::byte* lists;
  std::int64_t pitch, first_page;
  std::int32_t pages_found, count;
  int page_tokens, entry_bytes;

  __device__ __forceinline__ std::int32_t start(std::int64_t page) const {
    std::int32_t at = 0;  // pages found before this one
    for (std::int32_t n = pages_found; n > 0;) {
      const std::int32_t half = n / 2;
      const bool earlier = found[at + half] < first_page + page;
      at = earlier ? at + half + 1 : at;
      n = earlier ? n - half - 1 : half;
    }
    return at < pages_found ? before[at] : count;
  }
  __device__ __forceinline__ std::int32_t tokens(std::int64_t, std::int32_t column) const {
    return packed_page{lists + column * pitch, page_tokens, entry_bytes}.count();
  }
  __device__ __forceinline__ std::int32_t id(std::int64_t member) const { return slots[member]; }
  __device__ __forceinline__ std::int64_t place(std::int64_t member) const { return places[member]; }
};

/// The members of the pages found of all units, where values are coded by member. Trivially copyable; all pointers are the device's.
///
/// found       what a search left, by_page; lists: the members' column of dci_tree
struct page_tier_members {
  page_search_arrays found;
  column_array lists;
  int page_tokens = 0;
  int entry_bytes = 1;

  /// How many members a unit has; -1 where it takes no part, or all that its zone has is attended to by its rows.
  __device__ __forceinline__ std::int32_t count_of(const device_batch& batch, const rerank_input& in, const rerank_output& ranked,
                                                   std::int64_t unit) const {
    if (found.counts[unit] < 0) return -1;
    rerank_unit u;
    u.read(batch, in, ranked, unit);
    return u.keeps_zone() ? -1 : found.counts[unit];
  }
  __device__ __forceinline__ page_tier_unit of_unit(const unit_pages& of) const {
    page_tier_unit u;
    u.slots = found.slots + of.unit * found.id_pitch;
    u.places = found.places + of.unit * found.id_pitch;
    u.found = found.found + of.unit * found.found_pitch;
    u.before = found.before + of.unit * found.found_pitch;
    u.lists = lists.at(0, of.head);
    u.pitch = lists.pitch;
    u.first_page = of.first;
    u.pages_found = static_cast<std::int32_t>(of.count) - found.missed[of.unit];
    u.count = found.counts[of.unit];
    u.page_tokens = page_tokens;
    u.entry_bytes = entry_bytes;
    return u;
  }
};

}  // namespace kvx
