#pragma once
// The child lists of all sequences of a cache on the host, which follow their links.

#include <kvx/index/dci_lists.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Lists by (slot of a sequence, retrieving layer, KV head).
///
/// what        derived from the columns, and so never part of a step: `follow` brings them up to date before a step searches
/// cost        12 bytes a token, layer and head
class tree_lists {
 public:
  tree_lists() = default;
  tree_lists(std::size_t slots, int layers, int heads) : slots_(slots), layers_(layers), heads_(heads) {}

  const dci_lists& of(std::uint32_t slot, int layer, std::int64_t head) const {
    return slots_[slot].lists[static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads_) + static_cast<std::size_t>(head)];
  }

  /// A sequence keeps its first `tokens` tokens alone.
  void cut(std::uint32_t slot, std::int64_t tokens) noexcept {
    if (slot < slots_.size()) slots_[slot].unchanged = std::min(slots_[slot].unchanged, tokens);
  }

  /// Follows a sequence up to `tokens`, whole blocks whose columns are filled.   head_of(layer, head): its dci_head
  template <class HeadOf>
  void follow(std::uint32_t slot, std::int64_t tokens, std::int64_t block, const HeadOf& head_of) {
    sequence& of = slots_[slot];
    if (of.unchanged == tokens && of.tokens == tokens) return;
    of.lists.resize(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(heads_));
    const std::int64_t unchanged = std::min(of.unchanged, tokens) / block * block;
    of.unchanged = unchanged;
    for (int layer = 0; layer < layers_; ++layer) {
      for (int head = 0; head < heads_; ++head) {
        dci_lists& lists = of.lists[static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads_) + static_cast<std::size_t>(head)];
        lists.sync(head_of(layer, head), std::min(unchanged, lists.tokens()), tokens);
      }
    }
    of.unchanged = of.tokens = tokens;
  }

 private:
  struct sequence {
    std::vector<dci_lists> lists;  // (layers, heads)
    std::int64_t unchanged = 0;    ///< tokens whose links are those that the lists have
    std::int64_t tokens = 0;       ///< that all lists hold
  };
  std::vector<sequence> slots_;
  int layers_ = 0;
  int heads_ = 0;
};

}  // namespace kvx
