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
///
/// pitch        bytes from the block of a page to that of the next, of one head: pages of a head lie side by side, since a scan reads those
///              of one head after the other, and processors ask ahead for what follows
/// head_stride  bytes from one head to the next
struct column_array {
  std::byte* data = nullptr;
  std::int64_t pitch = 0;
  int heads = 0;
  std::int64_t head_stride = 0;

  KVX_HD constexpr std::byte* at(std::int64_t page, std::int64_t head) const { return data + head * head_stride + page * pitch; }
};

}  // namespace kvx
