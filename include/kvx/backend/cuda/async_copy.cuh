#pragma once
// Copies from global to shared memory that pass no register, and that a thread waits for later: cp.async behind three functions.

#include <cuda_runtime.h>

namespace kvx {

/// Begins to copy 16 bytes; both addresses lie on multiples of 16. The caches of level 1 are passed by: nothing is read twice.
__device__ __forceinline__ void begin_copy_16(void* shared, const void* global) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
#else
  ::simt::begin_copy_16(shared, global);
#endif
}

/// Ends a group: all copies that this thread has begun since the last one.
__device__ __forceinline__ void end_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  ::simt::end_copies();
#endif
}

/// Waits for all groups of this thread but the last `Pending`. Other threads see the copies behind a barrier.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  ::simt::wait_copies(Pending);
#endif
}

}  // namespace kvx
