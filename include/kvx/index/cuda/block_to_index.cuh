#pragma once
// Blocks of tokens that a commit indexes on the device.

#include <cstdint>

namespace kvx {

/// A block of tokens to be indexed.
///
/// pages       ids of columns of the sequence's pages from logical page `first_page` on, up to the end of the block: at least those of the
///             block, and of the metric_tokens positions before its end where a metric is learned; all where links are made
/// run, before   number of the run of blocks that it belongs to, and how many of them stand before it in the list: where links are made
/// frames      under which the rows of these pages lie, or null: under the same ids
/// first_block ids of the pages of the sequence's first block, where means are coded (page_codes.cuh)
struct block_to_index {
  const std::int32_t* pages = nullptr;
  std::int64_t first_page = 0;
  std::int64_t block = 0;
  std::int32_t run = 0;
  std::int32_t before = 0;
  const std::int32_t* frames = nullptr;
  const std::int32_t* first_block = nullptr;
};

/// Blocks that follow each other in one sequence.
///
/// pages       ids of all pages of the sequence; end: tokens up to the end of the last block
struct run_to_link {
  const std::int32_t* pages = nullptr;
  std::int64_t end = 0;
};

}  // namespace kvx
