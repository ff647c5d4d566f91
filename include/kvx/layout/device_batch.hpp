#pragma once
// A ragged batch as kernels read it: items that lie in device memory, and the bounds that a launch is planned for.

#include <kvx/layout/batch_item.hpp>

#include <cstdint>

namespace kvx {

/// The new tokens of a batch. Trivially copyable; all pointers are the device's, their page tables too.
///
/// items       (entries), at one address for the life of a cache: `begin` writes them before the kernels of its step
/// entry_of    (tokens) entry of each new token
/// tokens      N, new tokens over all entries
/// most_queries, longest   no item has more new tokens, no sequence more tokens: grids are made for these, and lengths may grow up to
///             them when the launches are replayed
struct device_batch {
  const batch_item* items = nullptr;
  const std::int32_t* entry_of = nullptr;
  std::int64_t tokens = 0;
  int entries = 0;
  std::int64_t most_queries = 0;
  std::int64_t longest = 0;
};

}  // namespace kvx
