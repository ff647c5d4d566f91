#pragma once
// Blocks of one launch that wait for others: only for those that have started before them, so that nobody waits for ever.

#include <cuda_runtime.h>

namespace kvx {

/// Number of this block in the order in which the blocks of a launch start; by one thread of each block.
///
/// what        work that is handed out by this number may wait for work of lower numbers: those blocks run already, whatever else
///             holds the device
/// shapes      every block of the launch calls once; `started` is 0 before and after
__device__ __forceinline__ unsigned start_number(unsigned* started, unsigned blocks) {
  const unsigned number = atomicAdd(started, 1u);
  if (number + 1 == blocks) *started = 0;  // nobody is left to ask
  return number;
}

/// Tells that this block is done; all threads call. What they wrote before is seen behind a wait_for.
__device__ __forceinline__ void tell_done(unsigned* done) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(done, 1u);
}

/// Waits until so many blocks, all of lower start numbers, are done; all threads call.
__device__ __forceinline__ void wait_for(unsigned* done, unsigned blocks) {
  if (threadIdx.x == 0) {
    while (atomicAdd(done, 0u) < blocks) __nanosleep(100);
    __threadfence();
  }
  __syncthreads();
}

}  // namespace kvx
