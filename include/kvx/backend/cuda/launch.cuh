#pragma once
// Starting kernels: one function, through cudaLaunchKernelEx, every launch checked.

#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>
#include <string>
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

/// Asks for a kernel's dynamic shared memory.
///
/// errors      cuda_error that says how much was asked for, and what a block can have together with what the kernel declares
inline void ask_for_shared_memory(const void* kernel, std::size_t bytes, int ordinal) {
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (code == cudaSuccess) return;
  int most = 0;
  (void)cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  const std::string call = joined(
      {"cudaFuncSetAttribute: ", std::to_string(bytes), " bytes of dynamic shared memory for a block of at most ", std::to_string(most)});
  check(call.c_str(), code);
}

/// Enqueues a kernel. Nothing is enqueued for an empty grid.
///
/// errors      cuda_error where the runtime refuses the launch, or the shared memory
/// cost        no allocation, no synchronisation: may be captured in a graph
template <class... Parameters, class... Arguments>
void launch(const device& exec, const launch_shape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const current_device here(exec.ordinal);
  constexpr std::size_t granted = 32 * 1024;  // without asking: of 48 KiB, 16 for what a kernel declares itself
  std::unique_lock<std::mutex> asking(shared_memory_asked(), std::defer_lock);
  if (shape.shared_bytes > granted) {
    asking.lock();
    ask_for_shared_memory(reinterpret_cast<const void*>(kernel), shape.shared_bytes, exec.ordinal);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = exec.stream;
  check("cudaLaunchKernelEx", cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

}  // namespace kvx
