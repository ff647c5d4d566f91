#pragma once
// Scratch of a cache on the device: it grows, and what launches were captured with stays.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/device.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Memory of at least the bytes that were last asked for, zero when it is new.
///
class device_scratch {
 public:
  /// keep        what was outgrown stays, since graphs may name it; then sizes double, so that it is less than what is in use
  /// errors      what the resource throws; nothing has changed then
  void reserve(const device& exec, std::int64_t bytes, bool keep) {
    if (bytes <= now_.size()) return;
    outgrown_.reserve(outgrown_.size() + 1);
    device_block more = allocate(exec, keep ? std::max(bytes, 2 * now_.size()) : bytes);
    const current_device here(exec.ordinal);
    check("cudaMemsetAsync", cudaMemsetAsync(more.data(), 0, static_cast<std::size_t>(more.size()), exec.stream));
    now_.free_behind(exec.stream);
    if (keep && now_.size() > 0) outgrown_.push_back(std::move(now_));
    now_ = std::move(more);
  }

  std::byte* data() const { return now_.data(); }
  std::span<std::byte> span() const { return {now_.data(), static_cast<std::size_t>(now_.size())}; }
  std::int64_t size() const { return now_.size(); }

 private:
  device_block now_;
  std::vector<device_block> outgrown_;
};

}  // namespace kvx
