#pragma once
// The selections of semantic pages that a cache on the device keeps for other layers and steps: their memory, and what is forgotten.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/page_reuse.hpp>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Selections of all sequences of a cache, in memory of the device; nothing where every token of every layer searches.
///
/// cost        272 bytes for each slot, layer that searches, KV head and place (kept_places); begin and cut are one launch
class kept_selections {
 public:
  kept_selections() = default;

  /// layers      that retrieve
  /// errors      usage_error: index.reuse is out of its range
  kept_selections(const device& exec, const page_reuse& reuse, std::int64_t slots, int layers, int heads,
                  call_site where = call_site::here()) {
    require_reuse(reuse, where);
    arrays_ = {reuse, nullptr, layers, heads};
    if (!reuse.any() || layers == 0) return;
    memory_ = allocate(exec, kept_bytes(reuse, slots, layers, heads), where);
    arrays_.data = reinterpret_cast<kept_selection*>(memory_.data());
    const current_device here(exec.ordinal);
    check("cudaMemsetAsync", cudaMemsetAsync(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()), exec.stream));  // positions -1
  }

  const kept_page_arrays& arrays() const { return arrays_; }
  std::int64_t bytes() const { return memory_.size(); }  ///< held from the start

  /// Nothing is kept of positions that are not committed.
  void begin(const device& exec, const std::int32_t* slots, const device_batch& batch) const {
    if (arrays_.data != nullptr) forget_pages(exec, arrays_, slots, batch);
  }
  /// A sequence keeps its first `tokens` tokens alone.
  void cut(const device& exec, std::uint32_t slot, std::int64_t tokens) const {
    if (arrays_.data != nullptr) cut_pages(exec, arrays_, slot, tokens);
  }

 private:
  device_block memory_;
  kept_page_arrays arrays_;
};

}  // namespace kvx
