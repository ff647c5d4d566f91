#pragma once
// Where a new token of a ragged batch belongs, found by the blocks of a kernel.

#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// One new token: its entry, and which of the entry's new tokens it is.
///
/// query       -1 where the batch has no such token: a launch planned for more
struct batch_token {
  batch_item item;
  std::int64_t query = -1;
  int entry = 0;

  __device__ std::int64_t position() const { return item.length - item.queries + query; }
};

/// Read by one thread for the whole block; all threads call.
__device__ inline batch_token token_of_block(const device_batch& batch, std::int64_t token) {
  __shared__ batch_item item;
  __shared__ int entry;
  if (threadIdx.x == 0) {
    entry = token < batch.tokens ? batch.entry_of[token] : -1;
    if (entry >= 0) item = batch.items[entry];
  }
  __syncthreads();
  batch_token found;
  found.entry = entry;
  if (entry >= 0) {
    found.item = item;
    const std::int64_t query = token - item.first;
    if (query >= 0 && query < item.queries) found.query = query;
  }
  __syncthreads();
  return found;
}

}  // namespace kvx
