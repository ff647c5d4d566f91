#pragma once
// Pages that searches have found, for the layers and the steps that use them again.

#include <kvx/index/page_reuse.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// The latest selections of all sequences of a cache, by (slot, retrieving layer, KV head, position).
///
/// what        a selection is of the token at one position, in a layer and at a position that search for others
/// threads     tokens of one step may be put side by side: places of different positions, layers and heads are apart
/// cost        272 bytes for each slot, layer that searches, head and place, once a sequence has used them
class kept_pages {
 public:
  kept_pages() = default;
  kept_pages(const page_reuse& reuse, std::size_t slots, int layers, int heads)
      : reuse_(reuse), slots_(slots), layers_(layers), heads_(heads) {}

  /// Memory for a sequence whose next token stands at position n; what was found there and behind it is forgotten.
  void begin(std::uint32_t slot, std::int64_t n) {
    slots_[slot].resize(static_cast<std::size_t>(kept_of_sequence(reuse_, layers_, heads_)));
    cut(slot, n);
  }
  void cut(std::uint32_t slot, std::int64_t n) noexcept {
    if (slot >= slots_.size()) return;
    for (kept_selection& s : slots_[slot]) {
      if (s.position >= n) s.position = -1;
    }
  }

  /// Memory that is held.
  std::int64_t bytes() const {
    std::int64_t result = 0;
    for (const auto& of_slot : slots_) result += std::ssize(of_slot) * static_cast<std::int64_t>(sizeof(kept_selection));
    return result;
  }

  /// What the token at a position of a layer takes; nothing where that is not kept, or where it searches itself.
  std::span<const std::int32_t> find(std::uint32_t slot, int layer, std::int64_t head, std::int64_t position) const {
    const std::int64_t source = reuse_.source_position(position);
    const kept_selection& s = slots_[slot][place(layer, head, source)];
    if (reuse_.searches(layer, position) || s.position != source) return {};
    return {s.pages, static_cast<std::size_t>(s.count)};
  }

  /// Keeps what the token at a position of a layer has found, where others may take it.
  void put(std::uint32_t slot, int layer, std::int64_t head, std::int64_t position, std::span<const std::int32_t> pages) {
    if (!reuse_.searches(layer, position)) return;
    kept_selection& s = slots_[slot][place(layer, head, position)];
    const bool fits = std::cmp_less_equal(pages.size(), most_kept_pages);
    s.position = fits ? position : -1;
    s.count = fits ? static_cast<std::int32_t>(pages.size()) : 0;
    if (fits) std::copy(pages.begin(), pages.end(), s.pages);
  }

 private:
  std::size_t place(int layer, std::int64_t head, std::int64_t source) const {
    const std::int64_t searching = layer / reuse_.layers;
    return static_cast<std::size_t>((searching * heads_ + head) * kept_places(reuse_) + kept_place(reuse_, source));
  }

  page_reuse reuse_;
  std::vector<std::vector<kept_selection>> slots_;  // (slots)(layers that search, heads, places)
  int layers_ = 0;
  int heads_ = 0;
};

}  // namespace kvx
