#pragma once
// From semantic pages to tokens, on the device.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/index/cuda/page_arrays.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// The tokens of some pages of one unit, by one block of threads: members that can be found, ascending, and where it is asked for in the
/// order of their pages.
///
/// shapes      found: count pages, ascending, seen by all threads; all threads call
/// cost        a token is compared with those of the pages found in its block
template <int Threads, class Call>
__device__ void list_members(const Call& call, std::int64_t unit, const page_zone& zone, std::int64_t count,
                             block_scratch<int, Threads>& sums) {
  const std::int64_t head = unit % call.heads, P = call.page_tokens, of_block = call.index.block / P;
  const std::int32_t* const found = call.to.found + unit * call.to.found_pitch;
  std::int32_t* const before = call.to.before + unit * call.to.found_pitch;
  std::int32_t* const ids = call.to.ids + unit * call.to.id_pitch;
  const auto packed = [&](std::int64_t i) { return call.packed(zone.pages[found[i]], head); };
  int members = 0;
  for (std::int64_t turn = 0; turn < count; turn += Threads) {
    const std::int64_t i = turn + threadIdx.x;
    int all = 0;
    const int earlier = block_exclusive_sum<Threads>(i < count ? packed(i).count() : 0, sums, all);
    if (i < count) before[i] = members + earlier;
    members += all;
  }
  __syncthreads();
  for (std::int64_t slot = threadIdx.x; slot < count * P; slot += Threads) {
    const std::int64_t i = slot / P, block = found[i] / of_block;
    const packed_page own = packed(i);
    if (slot % P >= own.count()) continue;
    const int member = own.member(static_cast<int>(slot % P));
    std::int64_t first = i, at = slot % P;  // members of these pages before this one
    const auto add_smaller = [&](std::int64_t j) {
      const packed_page other = packed(j);
      for (int m = 0; m < other.count() && other.member(m) < member; ++m) ++at;
    };
    while (first > 0 && found[first - 1] / of_block == block) add_smaller(--first);
    for (std::int64_t j = i + 1; j < count && found[j] / of_block == block; ++j) add_smaller(j);
    ids[before[first] + at] = static_cast<std::int32_t>(block * call.index.block + member);
    if (!call.by_page) continue;
    const std::int64_t place = unit * call.to.id_pitch + before[i] + slot % P;
    call.to.slots[place] = static_cast<std::int32_t>(found[i] * P + slot % P);
    call.to.places[place] = static_cast<std::int32_t>(before[first] + at);
  }
  if (threadIdx.x == 0) {
    call.to.counts[unit] = members;
    call.to.found_counts[unit] = static_cast<std::int32_t>(count);
  }
}

}  // namespace kvx
