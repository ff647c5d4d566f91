#pragma once
// Slots in near memory for far rows that were selected lately: which row is in which, and in which order they were selected.

#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/far_rows.hpp>

#include <cstdint>

namespace kvx {

inline constexpr int most_hot_rows = 32767;  ///< slots of one layer and KV head

/// What a KV head counts: near, in slots, far, and rows that came from afar.
inline constexpr int slot_counts = 4;

/// Slots of one layer; trivially copyable, all in memory of the device but `shown`. Far row r of a KV head is row r % P of far page r / P.
///
/// unit        slots that are given out together: 1, or P for the rows of a semantic page
/// shapes      rows (H, slots, pitch) K then V · slot_of (H, far_rows), row_of (H, slots): -1 for none · order (H, slots) of which the
///             first slots / unit are used: units, that selected longest ago first · spare (H, 2, slots) · counts (H, slot_counts) chosen
///             rows, or pages found, that were near, in slots, neither; rows that were read from afar
/// units       pitch counts elements, a multiple of 16 bytes
/// shown       (H, slot_counts) in page-locked host memory: what counts were behind the last launch
template <class E>
struct hot_rows {
  E* rows = nullptr;
  std::int16_t* slot_of = nullptr;
  std::int64_t* row_of = nullptr;
  std::int16_t* order = nullptr;
  std::int16_t* spare = nullptr;
  std::uint64_t* counts = nullptr;
  std::uint64_t* shown = nullptr;
  int slots = 0;
  int unit = 1;
  std::int64_t far_rows = 0;
  std::int64_t pitch = 0;

  KVX_HD constexpr E* row(std::int64_t head, std::int64_t slot) const { return rows + (head * slots + slot) * pitch; }
};

/// Rows of one layer that may be far: where pages lie beside the near ones, and slots for what is chosen of them, row by row.
template <class E>
struct offloaded_rows {
  far_rows<E> far;
  hot_rows<E> hot;

  /// Where a row is read: near, in its slot, or far. Not beside a kernel that gives slots out.
  KVX_HD constexpr row_address<E> row(const row_view<const E>& near, std::int64_t page, std::int64_t head, std::int64_t slot) const {
    const row_address<E> there = far.row(near, page, head, slot);
    if (page < far.near_pages) return there;
    const int found = hot.slot_of[head * hot.far_rows + (page - far.near_pages) * near.page_tokens + slot];
    if (found < 0) return there;
    const E* const key = hot.row(head, found);
    return {key, key + (there.value - there.key)};
  }
};
static_assert([] {
  const int near[] = {0, 1, 2, 3};  // a page of two rows, of one component each
  int far[] = {4, 5, 6, 7}, slot[] = {8, 9};
  std::int16_t slot_of[] = {-1, 0};
  const row_view<const int> rows{{near, 4, 4, 2}, {near + 1, 4, 4, 2}, 1, 2, 1, 1};
  offloaded_rows<int> lying{{{far, 4, 4, 2}, {far + 1, 4, 4, 2}, 1}, {}};
  lying.hot.rows = slot;
  lying.hot.slot_of = slot_of;
  lying.hot.slots = 1;
  lying.hot.far_rows = lying.hot.pitch = 2;
  return *lying.row(rows, 0, 0, 1).value == 3 && *lying.row(rows, 1, 0, 0).key == 4 && *lying.row(rows, 1, 0, 1).value == 9;
}());

/// The same with slots for whole semantic pages.
template <class E>
struct offloaded_pages : offloaded_rows<E> {};

/// Lays the arrays of one layer out; a null pointer counts their bytes.
template <class E>
hot_rows<E> place_hot_rows(scratch_parts& memory, std::int64_t heads, int slots, std::int64_t far_rows, std::int64_t pitch, int unit = 1) {
  hot_rows<E> hot;
  hot.rows = memory.take<E>(heads * slots * pitch);
  hot.slot_of = memory.take<std::int16_t>(heads * far_rows);
  hot.row_of = memory.take<std::int64_t>(heads * slots);
  hot.order = memory.take<std::int16_t>(heads * slots);
  hot.spare = memory.take<std::int16_t>(2 * heads * slots);
  hot.counts = memory.take<std::uint64_t>(slot_counts * heads);
  hot.slots = slots;
  hot.unit = unit;
  hot.far_rows = far_rows;
  hot.pitch = pitch;
  return hot;
}

}  // namespace kvx
