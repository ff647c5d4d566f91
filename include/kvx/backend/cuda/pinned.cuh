#pragma once
// Page-locked host memory, which kernels read and write in place.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvx {

/// A block of page-locked memory that its owner frees. Moves; contents undefined. Not to be allocated or freed while a stream is captured,
/// nor freed while work that uses it is pending.
class pinned_block {
 public:
  pinned_block() = default;
  pinned_block(int ordinal, std::int64_t bytes) {
    if (bytes <= 0) return;
    const current_device here(ordinal);
    void* p = nullptr;
    check("cudaHostAlloc", cudaHostAlloc(&p, static_cast<std::size_t>(bytes), cudaHostAllocPortable));
    data_ = static_cast<std::byte*>(p);
    bytes_ = bytes;
  }
  pinned_block(pinned_block&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  pinned_block& operator=(pinned_block other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~pinned_block() {
    if (data_ != nullptr) (void)cudaFreeHost(data_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace kvx
