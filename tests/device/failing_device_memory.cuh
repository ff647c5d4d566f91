#pragma once
// Device memory that fails on demand.

#include <kvx/backend/cuda/memory.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvx::test {

/// Allocation `until_failure` from now fails, once (negative: none does); counts what was not given back.
class failing_device_memory final : public device_resource {
 public:
  std::int64_t until_failure = -1;
  std::int64_t blocks = 0;

  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
    void* const p = stream_ordered_memory()->allocate(bytes, stream);
    ++blocks;
    return p;
  }
  void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept override {
    --blocks;
    stream_ordered_memory()->deallocate(p, bytes, stream);
  }
};

}  // namespace kvx::test
