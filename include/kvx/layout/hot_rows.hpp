#pragma once
// Slots in near memory for far rows that were selected lately: which row is in which, and in which order they were selected.

#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/far_rows.hpp>

#include <cstdint>

namespace kvx {

inline constexpr int most_hot_rows = 32767;  ///< slots of one layer and KV head

/// Slots of one layer; trivially copyable, all in memory of the device but `shown`. Far row r of a KV head is row r % P of far page r / P.
///
/// shapes      rows (H, slots, pitch) K then V · slot_of (H, far_rows), row_of (H, slots): -1 for none · order (H, slots) that selected
///             longest ago first · spare (H, 2, slots) · counts (H, 3) chosen rows that were near, in a slot, neither
/// units       pitch counts elements, a multiple of 16 bytes
/// shown       (H, 3) in page-locked host memory: what counts were behind the last launch
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
  std::int64_t far_rows = 0;
  std::int64_t pitch = 0;

  KVX_HD constexpr E* row(std::int64_t head, std::int64_t slot) const { return rows + (head * slots + slot) * pitch; }
};

/// Rows of one layer that may be far: where pages lie beside the near ones, and slots for what is chosen of them.
template <class E>
struct offloaded_rows {
  far_rows<E> far;
  hot_rows<E> hot;
};

/// What readers of whole pages are told of far rows.
constexpr const all_near& pages_of(const all_near& all) { return all; }
template <class E>
constexpr const far_rows<E>& pages_of(const offloaded_rows<E>& rows) {
  return rows.far;
}

/// Lays the arrays of one layer out; a null pointer counts their bytes.
template <class E>
hot_rows<E> place_hot_rows(scratch_parts& memory, std::int64_t heads, int slots, std::int64_t far_rows, std::int64_t pitch) {
  hot_rows<E> hot;
  hot.rows = memory.take<E>(heads * slots * pitch);
  hot.slot_of = memory.take<std::int16_t>(heads * far_rows);
  hot.row_of = memory.take<std::int64_t>(heads * slots);
  hot.order = memory.take<std::int16_t>(heads * slots);
  hot.spare = memory.take<std::int16_t>(2 * heads * slots);
  hot.counts = memory.take<std::uint64_t>(3 * heads);
  hot.slots = slots;
  hot.far_rows = far_rows;
  hot.pitch = pitch;
  return hot;
}

}  // namespace kvx
