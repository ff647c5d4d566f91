#pragma once
// Device memory to the host, waited for.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Waits until all work of the stream of `exec` has been done.
///
/// errors      usage_error while the stream is captured; cuda_error
inline void wait_for(const device& exec, call_site where = call_site::here()) {
  require_uncaptured(exec, where);
  const current_device here(exec.ordinal);
  check("cudaStreamSynchronize", cudaStreamSynchronize(exec.stream), where);
}

/// Copies behind all work of the stream: `to` may be read when that has been waited for.
inline void copy_out(const device& exec, void* to, const void* from, std::int64_t bytes, call_site where = call_site::here()) {
  if (bytes == 0) return;
  const current_device here(exec.ordinal);
  check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, exec.stream), where);
}

/// The same, waited for.
inline void copy_out_and_wait(const device& exec, void* to, const void* from, std::int64_t bytes, call_site where = call_site::here()) {
  require_uncaptured(exec, where);
  copy_out(exec, to, from, bytes, where);
  wait_for(exec, where);
}

}  // namespace kvx
