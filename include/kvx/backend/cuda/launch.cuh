#pragma once
// Starting kernels: one function, through cudaLaunchKernelEx, every launch checked.

#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/device.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>
#include <utility>

namespace kvx {

/// Blocks, threads of a block, bytes of dynamic shared memory.
struct launch_shape {
  dim3 grid;
  int threads = 128;
  std::size_t shared_bytes = 0;
};

/// Held from asking for a kernel's shared memory to its launch: another thread may launch the same kernel with less.
inline std::mutex& shared_memory_asked() {
  static std::mutex asked;
  return asked;
}

/// Enqueues a kernel. Nothing is enqueued for an empty grid.
///
/// errors      cuda_error where the runtime refuses the launch
/// cost        no allocation, no synchronisation: may be captured in a graph
template <class... Parameters, class... Arguments>
void launch(const device& exec, const launch_shape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const current_device here(exec.ordinal);
  constexpr std::size_t granted = 32 * 1024;  // without asking: of 48 KiB, 16 for what a kernel declares itself
  std::unique_lock<std::mutex> asking(shared_memory_asked(), std::defer_lock);
  if (shape.shared_bytes > granted) {
    asking.lock();
    check("cudaFuncSetAttribute", cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = exec.stream;
  check("cudaLaunchKernelEx", cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

}  // namespace kvx
