#pragma once
// Chosen rows wherever they lie: in a near page, in a slot, or far; those that are far come into the slots that were selected longest ago.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/layout/cuda/slots.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int fetch_threads = 512;

template <class E>
struct fetch_call {
  row_view<const E> near;
  far_rows<E> far;
  hot_rows<E> hot;
  device_batch batch;
  row_ids ids;
  const E** found = nullptr;  // (units, ids.pitch)
};

/// One chosen row: its far row, or -1, and where it lies as a page says.
template <class E>
struct chosen_row {
  std::int64_t far = -1;
  const E* at = nullptr;
};

/// Place i of a new token's choice; a null address where there is none.
template <class E>
__device__ __forceinline__ chosen_row<E> chosen_at(const fetch_call<E>& call, std::int64_t token, std::int64_t head, std::int64_t i) {
  const std::int64_t unit = token * call.near.heads + head;
  const batch_item& item = call.batch.items[call.batch.entry_of[token]];
  const std::int64_t query = token - item.first, P = call.near.page_tokens;
  if (query < 0 || query >= item.queries || i >= call.ids.counts[unit]) return {};
  const std::int64_t id = call.ids.of(unit)[i], page = item.pages[id / P];
  const E* const key = call.far.row(call.near, page, head, id % P).key;
  return {page < call.far.near_pages ? -1 : (page - call.far.near_pages) * P + id % P, key};
}

/// One KV head: first all of its choices are looked up, so that no slot that one of them needs is given away; then what was not found
/// takes the slots that wait, unit after unit.
template <int Threads, class E>
__global__ void __launch_bounds__(Threads, 1) fetch_rows_kernel(fetch_call<E> call) {
  constexpr int words = (most_hot_rows + 31) / 32;
  __shared__ unsigned selected[words];
  __shared__ block_scratch<int, Threads> scratch;
  __shared__ block_scratch<std::uint64_t, Threads> sums;
  const std::int64_t head = blockIdx.x, H = call.near.heads, most = call.ids.most;
  const int slots = call.hot.slots, tid = static_cast<int>(threadIdx.x);
  std::int16_t* const slot_of = call.hot.slot_of + head * call.hot.far_rows;  // (far rows)
  std::int64_t* const row_of = call.hot.row_of + head * slots;                // (slots)
  std::int16_t* const order = call.hot.order + head * slots;                  // (slots)
  std::int16_t* const waiting = call.hot.spare + 2 * head * slots;            // (slots)
  std::int16_t* const kept = waiting + slots;                                 // (slots)
  for (int i = tid; i < words; i += Threads) selected[i] = 0;
  __syncthreads();
  std::uint64_t near = 0, hot = 0, far = 0;
  const int chunks = static_cast<int>((most + warp_lanes - 1) / warp_lanes);
  for (int chunk = warp_of_thread(); chunk < call.batch.tokens * chunks; chunk += Threads / warp_lanes) {
    const std::int64_t token = chunk / chunks, i = chunk % chunks * warp_lanes + lane_of_thread();
    if (i >= most) continue;
    chosen_row<E> row = chosen_at(call, token, head, i);
    if (row.far >= 0) {
      const int slot = slot_of[row.far];
      if (slot >= 0) {
        atomicOr(selected + slot / 32, 1u << slot % 32);
        row.at = call.hot.row(head, slot);
        ++hot;
      }
    } else if (row.at != nullptr) {
      ++near;
    }
    call.found[(token * H + head) * call.ids.pitch + i] = row.at;
  }
  __syncthreads();
  const int free = part_slots<Threads>(order, slots, selected, waiting, kept, scratch);
  int given = 0;
  for (std::int64_t token = 0; token < call.batch.tokens; ++token) {
    for (std::int64_t first = 0; first < most; first += Threads) {
      const std::int64_t i = first + tid;
      const chosen_row<E> row = i < most ? chosen_at(call, token, head, i) : chosen_row<E>{};
      const E*& found = call.found[(token * H + head) * call.ids.pitch + (i < most ? i : 0)];
      bool missed = row.far >= 0 && slot_of[row.far] < 0;
      if (row.far >= 0 && !missed && found == row.at) {  // an earlier unit has brought it
        found = call.hot.row(head, slot_of[row.far]);
        ++hot;
      }
      if (missed) ++far;
      if (__syncthreads_or(missed ? 1 : 0) == 0) continue;
      int all = 0;
      const int at = given + block_exclusive_sum(missed ? 1 : 0, scratch, all);
      if (missed && at < free) {
        const int slot = waiting[at];
        if (row_of[slot] >= 0) slot_of[row_of[slot]] = -1;
        row_of[slot] = row.far;
        slot_of[row.far] = static_cast<std::int16_t>(slot);
        found = call.hot.row(head, slot);
      }
      given = given + all < free ? given + all : free;
      __syncthreads();
    }
  }
  copy_to_slots<Threads>(call.far, call.hot, call.near.page_tokens, head, waiting, given);
  turn_order<Threads>(order, slots, waiting, free, given, kept);
  add_counts<Threads>(call.hot, head, {near, hot, far, far}, sums);
}

/// Finds the chosen rows of every unit of a step, and brings those that are far into slots.
///
/// what        a row of a near page is found there; a far one in its slot, or it is read once and takes the slot that was selected longest
///             ago of those that no unit has chosen now; where there is none it is found in far memory
/// shapes      batch: items under the frames of the rows, see page_frames; found (units, ids.pitch) addresses of K, V behind it as in all
///             rows; null behind a unit's count, up to ids.most
/// cost        one launch, a block a KV head; each far row that is not in a slot is read once for all units
/// exactness   which row gets which slot follows from the choices alone, in the order of tokens and places; a row holds the same bits in
///             either place
/// errors      ids of a unit must differ, and are not checked
template <element E>
void fetch_rows(const device& exec, const row_view<const E>& near, const far_rows<E>& far, const hot_rows<E>& hot,
                const device_batch& batch, const row_ids& ids, const E** found) {
  launch(exec, {.grid = dim3(static_cast<unsigned>(near.heads)), .threads = fetch_threads}, fetch_rows_kernel<fetch_threads, E>,
         fetch_call<E>{near, far, hot, batch, ids, found});
}

}  // namespace kvx
