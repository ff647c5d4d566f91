#pragma once
// How a sequence is divided: sink tokens, the retrieval zone, recent tokens.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// Sink [0, sink) and recent [edge, n) always take part in attention exactly; the retrieval zone [sink, edge) lies between.
///
/// sink        tokens at the start
/// local       at least so many tokens at the end stay recent
/// first       the retrieval zone is empty until it would reach so many tokens: the first ones enter it together
/// unit        the retrieval zone ends at a multiple of so many tokens, as an index needs it that takes whole blocks; 0: of a page
struct zones {
  int sink = 0;
  int local = 0;
  int first = 0;
  int unit = 0;

  friend constexpr bool operator==(const zones&, const zones&) = default;
};

/// End of the retrieval zone of a sequence of n tokens: the largest multiple of z.unit, or where that is 0 of a page, that is at most
/// n - local; sink where that is less than sink or `first`.
///
/// A pure function of the length: truncating and appending again, or appending in other pieces, gives the same zones.
KVX_HD constexpr std::int64_t edge(zones z, std::int64_t n, std::int64_t page_tokens) {
  const std::int64_t old = n > z.local ? round_down(n - z.local, z.unit > 0 ? z.unit : page_tokens) : 0;
  return old > z.sink && old >= z.first ? old : z.sink;
}
static_assert(edge({.sink = 4, .local = 256}, 100, 64) == 4 && edge({.sink = 4, .local = 256}, 1000, 64) == 704);
static_assert(edge({.sink = 4, .local = 256, .first = 704}, 959, 64) == 4 && edge({.sink = 4, .local = 256, .first = 704}, 960, 64) == 704);
static_assert(edge({.sink = 32, .local = 32, .unit = 256}, 543, 16) == 256 && edge({.sink = 32, .local = 32, .unit = 256}, 544, 16) == 512);
static_assert(edge({.sink = 4, .local = 256}, 319, 64) == 4 && edge({.sink = 4, .local = 256}, 320, 64) == 64);

}  // namespace kvx
