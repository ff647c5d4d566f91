#pragma once
// Host memory to the device, waited for: for what is set up once and then read by kernels alone.

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Copies, and waits until the stream of `exec` has done so: `from` may go then.
///
/// errors      usage_error while the stream is captured; cuda_error
inline void copy_in_and_wait(const device& exec, void* to, const void* from, std::int64_t bytes, call_site where = call_site::here()) {
  require_uncaptured(exec, where);
  if (bytes == 0) return;
  const current_device here(exec.ordinal);
  check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, exec.stream), where);
  check("cudaStreamSynchronize", cudaStreamSynchronize(exec.stream), where);
}

}  // namespace kvx
