#pragma once
// Which of several blocks finishes last: it goes on with what all of them have left in memory.

#include <cuda_runtime.h>

namespace kvx {

/// True in all threads of the block that arrives last of `blocks`, and only there.
///
/// what        what any thread of these blocks wrote before the call is seen by every thread of the last one after it
/// shapes      all threads of a block call; `ticket` counts for these blocks alone, and is 0 before and after the launch
/// exactness   which block is last differs from run to run: what it computes may depend on the results of the blocks, never on itself
__device__ inline bool arrives_last(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) + 1 == blocks;
    if (last) *ticket = 0;
  }
  __syncthreads();
  const bool is_last = last;
  if (is_last) __threadfence();
  __syncthreads();
  return is_last;
}

}  // namespace kvx
