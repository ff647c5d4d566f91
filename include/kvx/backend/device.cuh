#pragma once
// The CUDA backend: which stream of which device runs the work, and whose memory holds the caches.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>
#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Execution on one CUDA device, in the order of one stream.
///
/// what        passed first to every call; calls enqueue, none waits for the device unless its name says so
/// stream      every kernel and copy of a call; the caller's. The legacy default stream is taken only where it is asked for
/// ordinal     the device that the stream belongs to; need not be the current one
/// memory      where a cache takes its rows, columns and scratch from; it must outlive the cache, and is never null
struct device {
  cudaStream_t stream = nullptr;
  int ordinal = 0;
  device_resource* memory = stream_ordered_memory();

  static constexpr bool reads_far = true;  ///< kernels read host memory in place
};

/// Whether calls on the stream of `exec` become part of a graph instead of running.
inline bool is_capturing(const device& exec) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check("cudaStreamIsCapturing", cudaStreamIsCapturing(exec.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Throws a usage_error while the stream is being captured: for what allocates, waits, or means one moment alone.
inline void require_uncaptured(const device& exec, call_site where = call_site::here()) {
  require(!is_capturing(exec), "the stream is being captured: only append, observe and attend may be", where);
}

/// Throws a usage_error where an execution has no memory to take from.
inline void require_memory(const device& exec, call_site where) { require(exec.memory != nullptr, "device.memory is null", where); }

/// Memory of this backend; throws what the resource throws, and a usage_error where there is no resource, or while the stream is being
/// captured: a graph would allocate and free it whenever it is launched.
inline device_block allocate(const device& exec, std::int64_t bytes, call_site where = call_site::here()) {
  require_memory(exec, where);
  require_uncaptured(exec, where);
  return device_block(exec.memory, exec.ordinal, exec.stream, bytes);
}

}  // namespace kvx
