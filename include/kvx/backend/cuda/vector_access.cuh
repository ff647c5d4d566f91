#pragma once
// Loads and stores of 16 bytes at once.

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// True where 16 bytes may be loaded or stored at once.
__device__ __forceinline__ bool on_16(const void* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15) == 0; }

__device__ __forceinline__ uint4 load_16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ void store_16(void* p, uint4 words) { *static_cast<uint4*>(p) = words; }

}  // namespace kvx
