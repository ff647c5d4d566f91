#pragma once
// What a cache holds at one moment.

#include <cstdint>

namespace kvx {

/// Counts of one cache; nothing is global.
///
/// units       bytes of pages in use, all layers; a page shared by several sequences counts once
struct cache_stats {
  int sequences = 0;
  std::int64_t tokens = 0;  ///< committed, over all sequences

  std::int64_t pages_total = 0;  ///< over all groups of layers
  std::int64_t pages_used = 0;
  std::int64_t pages_free = 0;
  std::int64_t pages_shared = 0;  ///< used by more than one sequence

  std::int64_t sink_tokens = 0;  ///< tokens by zone, over all sequences, as a retrieving layer sees them
  std::int64_t retrieval_tokens = 0;
  std::int64_t recent_tokens = 0;

  std::int64_t row_bytes = 0;     ///< rows in memory near the processor
  std::int64_t column_bytes = 0;  ///< columns, always near
  std::int64_t far_bytes = 0;     ///< rows elsewhere
  std::int64_t near_bytes() const { return row_bytes + column_bytes; }
};

}  // namespace kvx
