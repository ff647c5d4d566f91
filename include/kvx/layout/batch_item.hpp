#pragma once
// One sequence's part of a ragged batch, as the loops over rows and the kernels take it.

#include <cstdint>

namespace kvx {

/// The last `queries` tokens of a sequence are new: their rows are written, and they attend to the sequence causally.
///
/// pages       logical page j of the sequence is physical page pages[j]; entries of pages that no query can see are not read
/// length      n, the tokens of the sequence, the new ones included
/// queries     new tokens; token i of them stands at position length - queries + i and sees keys up to itself
/// first       row of q, k, v, out and lse that belongs to new token 0
struct batch_item {
  const std::int32_t* pages = nullptr;
  std::int64_t length = 0;
  std::int64_t queries = 0;
  std::int64_t first = 0;
};

}  // namespace kvx
