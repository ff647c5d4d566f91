#pragma once
// Whose pages a token attends to: which layers and positions search, and where what they find is kept for the others.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>

#include <cstdint>

namespace kvx {

/// Whose pages a token attends to.
///
/// layers      of so many retrieving layers the first one searches, and the others take its pages
/// steps       of so many positions, at most 32, the first one searches, and those behind it take its pages
/// source      IceCache (arXiv 2604.10539) section 3: layers 3. Here both cost quality: docs/icecache.md
struct page_reuse {
  int layers = 1;
  int steps = 1;

  KVX_HD constexpr bool any() const { return layers > 1 || steps > 1; }

  /// The layer and the position that search for those of a layer, by its number among those that retrieve, and a position.
  KVX_HD constexpr int source_layer(int layer) const { return layer - layer % layers; }
  KVX_HD constexpr std::int64_t source_position(std::int64_t position) const { return position - position % steps; }
  KVX_HD constexpr bool searches(int layer, std::int64_t position) const {
    return source_layer(layer) == layer && source_position(position) == position;
  }
};

/// New tokens of a sequence at most whose selections are kept, and pages of a selection.
inline constexpr std::int64_t most_keeping_tokens = 32, most_kept_pages = 64;

/// Selections that are kept of one layer and KV head of a sequence, in turn: those that a step of most_keeping_tokens writes, and one more
/// that it reads, share no place.
KVX_HD constexpr std::int64_t kept_places(const page_reuse& r) { return most_keeping_tokens / r.steps + 2; }
KVX_HD constexpr std::int64_t kept_place(const page_reuse& r, std::int64_t source) { return source / r.steps % kept_places(r); }
static_assert([] {
  for (int steps = 1; steps <= most_keeping_tokens; ++steps) {
    const page_reuse r{1, steps};
    for (std::int64_t n = 1000; n < 1000 + 3 * steps; ++n) {
      std::int64_t taken[2 * most_keeping_tokens] = {}, count = 0;
      for (std::int64_t p = r.source_position(n); p < n + most_keeping_tokens; p += steps) {
        for (std::int64_t i = 0; i < count; ++i) {
          if (taken[i] == kept_place(r, p)) return false;
        }
        taken[count++] = kept_place(r, p);
      }
    }
  }
  return true;
}());

/// The latest selection of one layer and KV head that was kept at a place.
///
/// position    of the token that searched, -1: nothing is kept
/// pages       (count) logical pages, best first
struct kept_selection {
  std::int64_t position = -1;
  std::int32_t count = 0;
  std::int32_t pages[most_kept_pages] = {};
};

/// Selections that are kept of a sequence, of so many layers that retrieve.
KVX_HD constexpr std::int64_t kept_of_sequence(const page_reuse& r, std::int64_t layers, std::int64_t heads) {
  return r.any() ? ceil_div(layers, r.layers) * heads * kept_places(r) : 0;
}

/// Their bytes, of so many sequences.
constexpr std::int64_t kept_bytes(const page_reuse& r, std::int64_t sequences, std::int64_t layers, std::int64_t heads) {
  return sequences * kept_of_sequence(r, layers, heads) * static_cast<std::int64_t>(sizeof(kept_selection));
}
static_assert(kept_bytes({2, 4}, 3, 3, 2) == 3 * 2 * 2 * 10 * 272 && kept_bytes({}, 3, 3, 2) == 0);

/// Throws a usage_error for a reuse out of its range.
inline void require_reuse(const page_reuse& r, call_site where) {
  require_range("index.reuse.layers", r.layers, 1, 4096, where);
  require_range("index.reuse.steps", r.steps, 1, most_keeping_tokens, where);
}

}  // namespace kvx
