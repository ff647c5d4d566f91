#pragma once
// Columns: the side arrays that a policy keeps beside the rows, one block per page and KV head.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// One array that a policy declares. What lies in its blocks is the policy's own affair.
///
/// units       bytes of the block of one (page, KV head); blocks start on multiples of 64 bytes
struct column {
  std::int64_t block_bytes = 0;

  KVX_HD constexpr std::int64_t pitch() const { return round_up(block_bytes, 64); }
};

/// Addresses of one column of one layer. Blocks are found by page id, so rows may move to far memory while columns stay.
struct column_array {
  std::byte* data = nullptr;
  std::int64_t pitch = 0;
  int heads = 0;

  KVX_HD constexpr std::byte* at(std::int64_t page, std::int64_t head) const { return data + (page * heads + head) * pitch; }
};

}  // namespace kvx
