#pragma once
// Chosen rows wherever they lie: in a near page, in a slot, or far; those that are far come into the slots that were selected longest ago.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
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

/// The slots of one KV head: those that are not selected now, that selected longest ago first, and those that are.
///
/// returns     how many are not selected
template <int Threads>
__device__ __forceinline__ int part_slots(const std::int16_t* order, int slots, const unsigned* selected, std::int16_t* waiting,
                                          std::int16_t* kept, block_scratch<int, Threads>& scratch) {
  int before = 0;
  for (int first = 0; first < slots; first += Threads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const std::int16_t slot = i < slots ? order[i] : std::int16_t{0};
    const bool waits = i < slots && (selected[slot / 32] >> slot % 32 & 1u) == 0;
    int all = 0;
    const int at = before + block_exclusive_sum(waits ? 1 : 0, scratch, all);
    if (i < slots) {
      if (waits) {
        waiting[at] = slot;
      } else {
        kept[i - at] = slot;
      }
    }
    before += all;
  }
  __syncthreads();
  return before;
}

/// Rows that have been given the slots waiting[0 .. count) come from afar, four of a warp at once.
template <int Threads, class E>
__device__ __forceinline__ void copy_to_slots(const fetch_call<E>& call, std::int64_t head, const std::int16_t* waiting, int count) {
  constexpr int each = 4, part = 16 / static_cast<int>(sizeof(E));
  const std::int64_t P = call.near.page_tokens;
  const std::int64_t* const row_of = call.hot.row_of + head * call.hot.slots;
  for (int first = warp_of_thread() * each; first < count; first += Threads / warp_lanes * each) {
    const E* from[each];
    E* to[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int slot = waiting[first + i < count ? first + i : first];
      from[i] = call.far.key.at(row_of[slot] / P, head, row_of[slot] % P);
      to[i] = call.hot.row(head, slot);
    }
    for (std::int64_t d = lane_of_thread() * part; d < call.hot.pitch; d += warp_lanes * part) {
      uint4 x[each];
#pragma unroll
      for (int i = 0; i < each; ++i) x[i] = load_16(from[i] + d);
#pragma unroll
      for (int i = 0; i < each; ++i) {
        if (first + i < count) store_16(to[i] + d, x[i]);
      }
    }
  }
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
  copy_to_slots<Threads>(call, head, waiting, given);
  for (int i = tid; i < slots; i += Threads)
    order[i] = i < free - given ? waiting[given + i] : i < slots - given ? kept[i - (free - given)] : waiting[i - (slots - given)];
  const auto add = [](std::uint64_t a, std::uint64_t b) { return a + b; };
  const std::uint64_t of_launch[] = {block_reduce(near, add, sums), block_reduce(hot, add, sums), block_reduce(far, add, sums)};
  if (tid != 0) return;
  for (int i = 0; i < 3; ++i) call.hot.shown[3 * head + i] = call.hot.counts[3 * head + i] += of_launch[i];
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

template <int Threads>
__global__ void __launch_bounds__(Threads) order_slots_kernel(std::int16_t* order, int slots) {
  for (int i = static_cast<int>(threadIdx.x); i < slots; i += Threads)
    order[std::int64_t{blockIdx.x} * slots + i] = static_cast<std::int16_t>(i);
}

/// Empties all slots: once, before the first launch that uses them.
template <element E>
void clear_hot_rows(const device& exec, const hot_rows<E>& hot, int heads) {
  const current_device here(exec.ordinal);
  const auto set = [&](void* data, int value, std::int64_t bytes) {
    if (bytes > 0) check("cudaMemsetAsync", cudaMemsetAsync(data, value, static_cast<std::size_t>(bytes), exec.stream));
  };
  set(hot.slot_of, 0xff, heads * hot.far_rows * 2);
  set(hot.row_of, 0xff, std::int64_t{heads} * hot.slots * 8);
  set(hot.counts, 0, std::int64_t{heads} * 24);
  launch(exec, {.grid = dim3(static_cast<unsigned>(hot.slots > 0 ? heads : 0)), .threads = 256}, order_slots_kernel<256>, hot.order,
         hot.slots);
}

}  // namespace kvx
