#pragma once
// Pages that searches have found, for the layers and the steps that use them again.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// The latest selections of all sequences of a cache, by (slot, retrieving layer, KV head, position).
///
/// what        a selection is of the token at one position; those of the latest `positions` ones are kept, up to `most` pages each
/// threads     tokens of one step may be put side by side: places of different positions, layers and heads are apart
/// cost        positions x (most + 2) x 4 bytes for each slot, layer and head that is used
class kept_pages {
 public:
  /// A step of at most `tokens` reads what at most `tokens` - 1 positions before it have found: none of these share a place.
  static constexpr std::int64_t tokens = 32, positions = 2 * tokens, most = 64;

  kept_pages() = default;
  kept_pages(std::size_t slots, int layers, int heads) : slots_(slots), layers_(layers), heads_(heads) {}

  /// Memory for a sequence whose next token stands at position n; what was found there and behind it is forgotten.
  void begin(std::uint32_t slot, std::int64_t n) {
    slots_[slot].resize(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_) * static_cast<std::size_t>(positions));
    cut(slot, n);
  }
  void cut(std::uint32_t slot, std::int64_t n) noexcept {
    if (slot >= slots_.size()) return;
    for (selection& s : slots_[slot]) {
      if (s.position >= n) s.position = -1;
    }
  }

  /// The selection of a position; none where it is not kept.
  std::span<const std::int32_t> find(std::uint32_t slot, int layer, std::int64_t head, std::int64_t position) const {
    const selection& s = slots_[slot][place(layer, head, position)];
    if (s.position != position) return {};
    return {s.pages.data(), static_cast<std::size_t>(s.count)};
  }

  void put(std::uint32_t slot, int layer, std::int64_t head, std::int64_t position, std::span<const std::int32_t> pages) {
    selection& s = slots_[slot][place(layer, head, position)];
    const bool fits = std::cmp_less_equal(pages.size(), most);
    s.position = fits ? position : -1;
    s.count = fits ? static_cast<std::int32_t>(pages.size()) : 0;
    if (fits) std::copy(pages.begin(), pages.end(), s.pages.begin());
  }

 private:
  struct selection {
    std::int64_t position = -1;
    std::int32_t count = 0;
    std::array<std::int32_t, most> pages;
  };
  std::size_t place(int layer, std::int64_t head, std::int64_t position) const {
    return static_cast<std::size_t>((std::int64_t{layer} * heads_ + head) * positions + position % positions);
  }

  std::vector<std::vector<selection>> slots_;  // (slots)(layers, heads, positions)
  int layers_ = 0;
  int heads_ = 0;
};

}  // namespace kvx
