#pragma once
// The CUDA backend: which stream of which device runs the work, and whose memory holds the caches.

#include <kvx/backend/cuda/memory.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Execution on one CUDA device, in the order of one stream.
///
/// what        passed first to every call; calls enqueue, none waits for the device unless its name says so
/// stream      every kernel and copy of a call; the caller's. The legacy default stream is taken only where it is asked for
/// ordinal     the device that the stream belongs to; need not be the current one
/// memory      where a cache takes its rows, columns and scratch from; it must outlive the cache
struct device {
  cudaStream_t stream = nullptr;
  int ordinal = 0;
  device_resource* memory = stream_ordered_memory();

  static constexpr bool reads_far = true;  ///< kernels read host memory in place
};

/// Memory of this backend; throws what the resource throws.
inline device_block allocate(const device& exec, std::int64_t bytes) { return device_block(exec.memory, exec.ordinal, exec.stream, bytes); }

}  // namespace kvx
