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
struct zones {
  int sink = 0;
  int local = 0;
  int first = 0;

  friend constexpr bool operator==(const zones&, const zones&) = default;
};

/// End of the retrieval zone of a sequence of n tokens: the largest multiple of `block` that is at most n - local; sink where that is less
/// than sink or `first`.
///
/// A pure function of the length: truncating and appending again, or appending in other pieces, gives the same zones.
KVX_HD constexpr std::int64_t edge(zones z, std::int64_t n, std::int64_t block) {
  const std::int64_t old = n > z.local ? round_down(n - z.local, block) : 0;
  return old > z.sink && old >= z.first ? old : z.sink;
}
static_assert(edge({.sink = 4, .local = 256}, 100, 64) == 4 && edge({.sink = 4, .local = 256}, 1000, 64) == 704);
static_assert(edge({.sink = 4, .local = 256, .first = 704}, 959, 64) == 4 && edge({.sink = 4, .local = 256, .first = 704}, 960, 64) == 704);
static_assert(edge({.sink = 4, .local = 256}, 319, 64) == 4 && edge({.sink = 4, .local = 256}, 320, 64) == 64);

}  // namespace kvx
