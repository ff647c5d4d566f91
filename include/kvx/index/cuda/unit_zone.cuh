#pragma once
// The zone of one unit of a search, read once a block.

#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/token_zone.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Tokens [begin, end) of a page table, and the length that decides how many are wanted; empty for a unit that takes no part.
/// Plain members: it lies in shared memory.
struct unit_zone {
  const std::int32_t* pages;
  std::int64_t begin, end, committed;

  KVX_HD constexpr std::int64_t tokens() const { return end - begin; }
  KVX_HD constexpr std::int64_t first_page(std::int64_t page_tokens) const { return begin / page_tokens; }
  KVX_HD constexpr std::int64_t last_page(std::int64_t page_tokens) const {
    return end > begin ? ceil_div(end, page_tokens) : first_page(page_tokens);
  }
};

/// The zone of a unit, by the calling thread.
__device__ __forceinline__ unit_zone read_zone(const bucket_search_shape& s, const device_batch& batch, std::int64_t unit) {
  const token_zone z = zone_of(batch, s.cut, s.page.tokens, unit / s.heads);
  return {z.entry < 0 ? nullptr : batch.items[z.entry].pages, z.begin, z.end, z.committed};
}

/// The same for a whole block, in shared memory. Ends in a barrier.
__device__ __forceinline__ void share_zone(const bucket_search_shape& s, const device_batch& batch, std::int64_t unit, unit_zone& shared) {
  if (threadIdx.x == 0) shared = read_zone(s, batch, unit);
  __syncthreads();
}

}  // namespace kvx
