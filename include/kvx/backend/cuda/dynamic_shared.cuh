#pragma once
// The dynamic shared memory of a block: the one place that knows how device compilers spell it.

#include <cuda_runtime.h>

#if !defined(__CUDACC__)
namespace simt {
void* dynamic_shared() noexcept;
}
#endif

namespace kvx {

/// What the launch asked for, on a multiple of 16 bytes; undefined at the start of a block.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) unsigned char kvx_dynamic_shared[];
  return reinterpret_cast<T*>(kvx_dynamic_shared);
#else
  return static_cast<T*>(::simt::dynamic_shared());
#endif
}

}  // namespace kvx
