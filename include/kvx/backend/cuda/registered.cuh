#pragma once
// Much host memory that kernels read and write in place: one range of addresses, made page-locked piece by piece.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/memory.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvx {

/// Page-locked memory at addresses that host and device share. Moves; contents undefined.
///
/// cost        page-locking touches every page: about a second for 4 GiB. In pieces of 1 GiB, since some systems refuse more at once
/// errors      capacity_error that says how many bytes were granted, when the system refuses a piece: nothing stays page-locked, and the
///             error does not surface in a later call. usage_error where host and device have different addresses for it
/// what        not to be freed while work that uses it is pending, nor freed or allocated while a stream is captured
class registered_memory {
 public:
  static constexpr std::int64_t piece = std::int64_t{1} << 30;

  registered_memory() = default;
  registered_memory(int ordinal, std::int64_t bytes, call_site where, std::int64_t piece_bytes = piece) : piece_(piece_bytes) {
    if (bytes <= 0) return;
    const current_device here(ordinal);
    int shared = 0;
    check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&shared, cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal), where);
    require(shared != 0, "offload_uva: this device has addresses of its own for host memory", where);
    memory_ = memory_block(lazy_pages(), std::max(bytes, std::int64_t{1} << 21));  // a mapping, which begins on a page of memory
    for (std::int64_t at = 0; at < memory_.size(); at += piece_) {
      const auto size = static_cast<std::size_t>(std::min(piece_, memory_.size() - at));
      const cudaError_t result = cudaHostRegister(memory_.data() + at, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (result == cudaSuccess) {
        locked_ = at + static_cast<std::int64_t>(size);
        continue;
      }
      (void)cudaGetLastError();
      const std::int64_t granted = locked_;
      release();
      throw capacity_error("page-locked bytes of host memory", bytes, granted, where);
    }
  }
  registered_memory(registered_memory&& other) noexcept
      : memory_(std::move(other.memory_)), locked_(std::exchange(other.locked_, 0)), piece_(other.piece_) {}
  registered_memory& operator=(registered_memory other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(locked_, other.locked_);
    std::swap(piece_, other.piece_);
    return *this;
  }
  ~registered_memory() { release(); }

  std::byte* data() const { return memory_.data(); }
  std::int64_t size() const { return memory_.size(); }

 private:
  void release() noexcept {
    for (std::int64_t at = 0; at < locked_; at += piece_) (void)cudaHostUnregister(memory_.data() + at);
    locked_ = 0;
  }

  memory_block memory_;
  std::int64_t locked_ = 0;
  std::int64_t piece_ = piece;
};

}  // namespace kvx
