#pragma once
// The promoted tokens of a cache in device memory.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/promoted_tokens.hpp>

#include <cstdint>

namespace kvx {

/// Owns the list; none at first.
///
/// cost        4 bytes for each promoted token; waits for the copy
/// errors      usage_error: see promoted_list, or a stream that is captured
class promoted_on_device {
 public:
  promoted_on_device() = default;
  promoted_on_device(const device& exec, const dci_shape& shape, std::int64_t tokens, call_site where = call_site::here()) {
    const promoted_list list(shape, tokens, where);
    const std::int64_t bytes = std::ssize(list.positions()) * 4;
    positions_ = allocate(exec, bytes);
    copy_in_and_wait(exec, positions_.data(), list.positions().data(), bytes, where);
    tokens_ = list.at(reinterpret_cast<const std::int32_t*>(positions_.data()));
  }

  const promoted_tokens& tokens() const { return tokens_; }

 private:
  device_block positions_;
  promoted_tokens tokens_;
};

}  // namespace kvx
