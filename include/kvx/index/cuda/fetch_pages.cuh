#pragma once
// Semantic pages that were found come into slots as a whole, where rows of theirs are far: into those that were selected longest ago.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/cuda/slots.cuh>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/row_ids.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int fetch_page_threads = 512;

/// Far rows of a page's members that a warp has counted.
struct far_members {
  int all = 0;
  int missing = 0;  ///< not in slots
};

/// What the kernel is told.
///
/// Search      page_search_call whose `far` is offloaded_pages
/// chosen      of the members of the pages found, ascending: pages without one stay where they are. No ids: all members
template <class Search>
struct page_fetch_call : Search {
  row_ids chosen;
};

/// One found page of a unit. A warp a page.
template <class Call>
class found_page {
 public:
  __device__ found_page(const Call& call, std::int64_t token, std::int64_t head, std::int64_t i)
      : call_(call), unit_(token * call.heads + head) {
    const int entry = call.batch.entry_of[token];
    const std::int64_t page = call.to.found[unit_ * call.to.found_pitch + i];
    packed_ = call.packed(call.batch.items[entry].pages[page], head);
    frames_ = call.row_items[entry].pages;
    block_ = page * P() / call.index.block * call.index.block;
  }

  __device__ int count() const { return packed_.count(); }

  /// Number of the far row of member m, or -1.
  __device__ std::int64_t far_row(int m) const {
    const std::int64_t token = block_ + packed_.member(m), frame = frames_[token / P()] - call_.far.far.near_pages;
    return frame < 0 ? -1 : frame * P() + token % P();
  }

  /// All lanes call and get the counts, 0 where no member was chosen; see(slot) is called for each slot that holds a member.
  template <class See>
  __device__ far_members look(const std::int16_t* slot_of, const See& see) const {
    far_members found;
    if (!is_wanted()) return found;
    for (int first = 0; first < count(); first += warp_lanes) {
      const int m = first + lane_of_thread();
      const std::int64_t row = m < count() ? far_row(m) : -1;
      const int slot = row >= 0 ? slot_of[row] : -1;
      if (slot >= 0) see(slot);
      found.all += __popc(__ballot_sync(all_lanes, row >= 0));
      found.missing += __popc(__ballot_sync(all_lanes, row >= 0 && slot < 0));
    }
    return found;
  }

  /// A unit of slots is the page's: what lay there has none, and members that are far and had none are to be copied there.
  __device__ void take(int unit, std::int16_t* slot_of, std::int64_t* row_of) const {
    for (int m = lane_of_thread(); m < P(); m += warp_lanes) {
      const int slot = unit * static_cast<int>(P()) + m;
      if (row_of[slot] >= 0) slot_of[row_of[slot]] = -1;
      const std::int64_t row = m < count() ? far_row(m) : -1;
      const bool comes = row >= 0 && slot_of[row] < 0;
      row_of[slot] = comes ? row : -1;
      if (comes) slot_of[row] = static_cast<std::int16_t>(slot);
    }
  }

 private:
  __device__ std::int64_t P() const { return call_.page_tokens; }

  __device__ bool is_wanted() const {
    if (call_.chosen.ids == nullptr) return true;
    bool any = false;
    for (int m = lane_of_thread(); m < count(); m += warp_lanes) any = any || is_chosen(block_ + packed_.member(m));
    return __any_sync(all_lanes, any ? 1 : 0) != 0;
  }
  __device__ bool is_chosen(std::int64_t token) const {
    const std::int32_t* const ids = call_.chosen.of(unit_);
    int first = 0, end = call_.chosen.counts[unit_];  // tokens before `first` are smaller, those from `end` on are not
    while (first < end) {
      const int middle = first + (end - first) / 2;
      (ids[middle] < token ? first : end) = ids[middle] < token ? middle + 1 : middle;
    }
    return first < call_.chosen.counts[unit_] && ids[first] == token;
  }

  const Call& call_;
  std::int64_t unit_;
  packed_page packed_;
  const std::int32_t* frames_;
  std::int64_t block_;
};

/// One KV head: first all pages that were found are looked up, so that no slots that one of them needs are given away; then those with rows
/// that were not found take the slots that wait, unit after unit.
template <int Threads, class Call>
__global__ void __launch_bounds__(Threads, 1) fetch_pages_kernel(Call call) {
  constexpr int warps = Threads / warp_lanes, words = (most_hot_rows + 31) / 32;
  __shared__ unsigned selected[words];
  __shared__ int misses[warps];
  __shared__ block_scratch<int, Threads> scratch;
  __shared__ block_scratch<std::uint64_t, Threads> sums;
  const auto& hot = call.far.hot;
  const std::int64_t head = blockIdx.x, H = call.heads, pitch = call.to.found_pitch;
  const int units = hot.slots / hot.unit, warp = warp_of_thread();
  std::int16_t* const slot_of = hot.slot_of + head * hot.far_rows;  // (far rows)
  std::int64_t* const row_of = hot.row_of + head * hot.slots;  // (slots)
  std::int16_t* const order = hot.order + head * hot.slots;  // (units)
  std::int16_t* const waiting = hot.spare + 2 * head * hot.slots;  // (units)
  std::int16_t* const kept = waiting + hot.slots;  // (units)
  for (int i = static_cast<int>(threadIdx.x); i < words; i += Threads) selected[i] = 0;
  __syncthreads();
  for (std::int64_t i = warp; i < call.tokens * pitch; i += warps) {
    const std::int64_t token = i / pitch;
    if (i % pitch >= call.to.found_counts[token * H + head]) continue;
    found_page(call, token, head, i % pitch).look(slot_of, [&](int slot) {
      const int unit = slot / hot.unit;
      atomicOr(selected + unit / 32, 1u << unit % 32);
    });
  }
  __syncthreads();
  const int free = part_slots<Threads>(order, units, selected, waiting, kept, scratch);
  std::uint64_t near = 0, held = 0, far = 0, read = 0;
  int given = 0;
  for (std::int64_t token = 0; token < call.tokens; ++token) {
    const int found = call.to.found_counts[token * H + head];
    for (int first = 0; first < found; first += warps) {
      far_members rows;
      if (first + warp < found) {
        rows = found_page(call, token, head, first + warp).look(slot_of, [](int) {});
        if (lane_of_thread() == 0) {
          near += rows.all == 0 ? 1 : 0;
          held += rows.all > 0 && rows.missing == 0 ? 1 : 0;
          far += rows.missing > 0 ? 1 : 0;
          read += static_cast<std::uint64_t>(rows.missing);
        }
      }
      if (lane_of_thread() == 0) misses[warp] = rows.missing > 0 ? 1 : 0;
      __syncthreads();
      int before = given, all = given;
      for (int w = 0; w < warps; ++w) {
        before += w < warp ? misses[w] : 0;
        all += misses[w];
      }
      if (rows.missing > 0 && before < free) found_page(call, token, head, first + warp).take(waiting[before], slot_of, row_of);
      given = all < free ? all : free;
      __syncthreads();
    }
  }
  copy_to_slots<Threads>(call.far.far, hot, call.page_tokens, head, waiting, given);
  turn_order<Threads>(order, units, waiting, free, given, kept);
  add_counts<Threads>(hot, head, {near, held, far, read}, sums);
}

/// Brings the semantic pages of which rows were chosen into slots, where rows of theirs are far.
///
/// what        pages selected minus those in slots: the rows of their members are gathered from host memory and scattered to slots by the
///             kernel that reads them. A page whose rows are in slots stays there; others take the slots of the pages that were found
///             longest ago, of those that no unit has found now; where there are none a page is read in place
/// shapes      search: as search_pages has left it, with row_items and offloaded_pages whose slots come in units of page_tokens; see
///             page_fetch_call
/// cost        one launch, a block a KV head; each row that is far and not in a slot is read once for all units
/// exactness   which page gets which slots follows from the pages found alone, in the order of tokens and pages; slots are kept by the far
///             row, so that what they hold is told by the row alone: a block that is packed anew, or a frame that is filled anew, leaves
///             nothing wrong
/// source      IceCache (arXiv 2604.10539) section 3: there a gather on the host into one buffer, a copy and a scatter, and dirty pages
template <element E, class Budget>
void fetch_pages(const device& exec, const page_search_call<E, Budget, offloaded_pages<E>>& search, const row_ids& chosen = {}) {
  using call = page_fetch_call<page_search_call<E, Budget, offloaded_pages<E>>>;
  launch(exec, {.grid = dim3(static_cast<unsigned>(search.heads)), .threads = fetch_page_threads},
         fetch_pages_kernel<fetch_page_threads, call>, call{search, chosen});
}

}  // namespace kvx
