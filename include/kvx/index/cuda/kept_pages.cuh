#pragma once
// Pages that searches on the device have found, in device memory, for the layers and the steps that use them again.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/index/page_reuse.hpp>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// The latest selections of all sequences of a cache. Trivially copyable; null data where every token of every layer searches.
///
/// data        (slots, layers that search, H, kept_places)
struct kept_page_arrays {
  page_reuse reuse;
  kept_selection* data = nullptr;
  int layers = 0;  ///< that retrieve
  int heads = 0;

  KVX_HD constexpr std::int64_t of_slot() const { return kept_of_sequence(reuse, layers, heads); }
  KVX_HD constexpr kept_selection* at(std::int64_t slot, int layer, std::int64_t head, std::int64_t source) const {
    return data + slot * of_slot() + (layer / reuse.layers * heads + head) * kept_places(reuse) + kept_place(reuse, source);
  }
};

/// What a unit takes and leaves. Plain members: it lies in shared memory.
///
/// waits       it belongs to another launch
/// from        the selection that it takes; null: it searches
/// to          where what it finds is kept; null: nowhere
struct kept_use {
  bool waits;
  const kept_selection* from;
  kept_selection* to;
};

/// The selections as the search of one layer uses them.
///
/// slots       (entries) of the batch
/// layer       its number among those that retrieve
/// follows     this launch is of the tokens that take what others of the same step may have found; those have gone before
struct kept_pages_of_layer : kept_page_arrays {
  const std::int32_t* slots = nullptr;
  int layer = 0;
  bool follows = false;

  /// queries     new tokens of the entry
  KVX_HD constexpr kept_use use_of(std::int32_t entry, std::int64_t head, std::int64_t position, std::int64_t queries) const {
    kept_use result{false, nullptr, nullptr};
    if (data == nullptr) return result;
    const std::int64_t source = reuse.source_position(position);
    result.waits = (source != position) != follows;
    if (result.waits || queries > most_keeping_tokens) return result;
    kept_selection* const place = at(slots[entry], layer, head, source);
    if (reuse.searches(layer, position)) {
      result.to = place;
    } else if (place->position == source && place->count > 0) {
      result.from = place;
    }
    return result;
  }
};

/// The pages that a unit takes: the best `wanted` of a selection, ascending. Returns how many. All threads call and see them.
///
/// shapes      found (at least wanted)
template <int Threads>
__device__ std::int64_t take_kept(const kept_selection& from, std::int64_t wanted, std::int32_t* found) {
  static_assert(Threads >= most_kept_pages);
  const int count = from.count < wanted ? from.count : static_cast<int>(wanted), i = static_cast<int>(threadIdx.x);
  if (i < count) {
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += from.pages[j] < from.pages[i] ? 1 : 0;
    found[rank] = from.pages[i];
  }
  __syncthreads();
  return count;
}

/// Keeps a selection, best first, where it is not too large. All threads call.
///
/// shapes      found (count) pages, ascending; score_of(page)
template <int Threads, class ScoreOf>
__device__ void keep_pages(kept_selection& to, std::int64_t position, const std::int32_t* found, std::int64_t count,
                           const ScoreOf& score_of) {
  static_assert(Threads >= most_kept_pages);
  const bool fits = count <= most_kept_pages;
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    to.position = fits ? position : -1;
    to.count = fits ? static_cast<std::int32_t>(count) : 0;
  }
  if (!fits || i >= count) return;
  const float score = score_of(found[i]);
  int rank = 0;
  for (int j = 0; j < count; ++j) {
    const float other = score_of(found[j]);
    rank += other > score || (other == score && j < i) ? 1 : 0;
  }
  to.pages[rank] = found[i];
}

template <int Threads>
__global__ void __launch_bounds__(Threads) forget_pages_kernel(kept_page_arrays kept, const std::int32_t* slots, device_batch batch) {
  const std::int64_t entry = blockIdx.x;
  const batch_item& item = batch.items[entry];
  kept_selection* const of_slot = kept.data + slots[entry] * kept.of_slot();
  for (std::int64_t i = threadIdx.x; i < kept.of_slot(); i += Threads) {
    if (of_slot[i].position >= item.length - item.queries) of_slot[i].position = -1;
  }
}

/// Nothing is kept of the new tokens of a batch, or of what stood at their positions before.
///
/// shapes      slots (entries) in device memory
inline void forget_pages(const device& exec, const kept_page_arrays& kept, const std::int32_t* slots, const device_batch& batch) {
  constexpr int threads = 256;
  launch(exec, {.grid = dim3(static_cast<unsigned>(batch.entries)), .threads = threads}, forget_pages_kernel<threads>, kept, slots, batch);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) cut_pages_kernel(kept_page_arrays kept, std::int64_t slot, std::int64_t tokens) {
  const std::int64_t i = std::int64_t{blockIdx.x} * Threads + threadIdx.x;
  if (i >= kept.of_slot()) return;
  kept_selection& s = kept.data[slot * kept.of_slot() + i];
  if (s.position >= tokens) s.position = -1;
}

/// Nothing is kept of a sequence's positions from `tokens` on.
inline void cut_pages(const device& exec, const kept_page_arrays& kept, std::int64_t slot, std::int64_t tokens) {
  constexpr int threads = 256;
  launch(exec, {.grid = dim3(static_cast<unsigned>(ceil_div(kept.of_slot(), threads))), .threads = threads}, cut_pages_kernel<threads>,
         kept, slot, tokens);
}

}  // namespace kvx
