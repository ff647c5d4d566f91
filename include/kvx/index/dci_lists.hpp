#pragma once
// The children of every token of the tree, in the order that a search walks them: derived from the links, never kept in pages.

#include <kvx/core/annotate.hpp>
#include <kvx/core/check.hpp>
#include <kvx/index/dci_head.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Lists of children as a search reads them; trivially copyable.
///
/// shapes      child, sibling (tokens): the newest child of a token, and the child of the same parent before it; -1: none
/// root        the newest child of the root
struct dci_cells {
  const std::int32_t* child = nullptr;
  const std::int32_t* sibling = nullptr;
  std::int32_t root = -1;
  std::int64_t tokens = 0;
};

/// The lists of one (sequence, layer, KV head). A copy is what a fork starts from.
///
/// cost        12 bytes a token; following the sequence costs each token once, either way
class dci_lists {
 public:
  std::int64_t tokens() const { return static_cast<std::int64_t>(parent_.size()); }
  dci_cells cells() const { return {child_.data(), sibling_.data(), root_, tokens()}; }

  /// Follows the sequence: the first `unchanged` tokens have the links that they had, those behind them are read anew, up to `tokens`.
  ///
  /// shapes      unchanged, tokens: whole blocks
  /// errors      usage_error: unchanged above tokens or above those that the lists hold; bad_alloc, and the lists hold fewer tokens
  template <class E>
  void sync(const dci_head<E>& of, std::int64_t unchanged, std::int64_t tokens, call_site where = call_site::here()) {
    require_range("dci_lists: unchanged tokens", unchanged, 0, std::min(tokens, this->tokens()), where);
    for (std::int64_t t = this->tokens() - 1; t >= unchanged; --t) {
      if (std::int32_t* const first = list_of(parent_[static_cast<std::size_t>(t)])) *first = sibling_[static_cast<std::size_t>(t)];
    }
    resize(unchanged);
    reserve(tokens);
    const std::int64_t P = of.rows.page_tokens;
    for (std::int64_t page = unchanged / P; page < tokens / P; ++page) {
      const std::int32_t* const links = of.links_of(page);
      parent_.insert(parent_.end(), links, links + P);
    }
    resize(tokens);
    for (std::int64_t t = unchanged; t < tokens; ++t) {
      std::int32_t* const first = list_of(parent_[static_cast<std::size_t>(t)]);
      if (first == nullptr) continue;
      sibling_[static_cast<std::size_t>(t)] = *first;
      *first = static_cast<std::int32_t>(t);
    }
  }

 private:
  std::int32_t* list_of(std::int32_t parent) {
    if (parent == not_in_tree) return nullptr;
    return parent == no_parent ? &root_ : &child_[static_cast<std::size_t>(parent)];
  }
  void resize(std::int64_t tokens) {
    parent_.resize(static_cast<std::size_t>(tokens), not_in_tree);
    child_.resize(static_cast<std::size_t>(tokens), -1);
    sibling_.resize(static_cast<std::size_t>(tokens), -1);
  }
  void reserve(std::int64_t tokens) {
    for (auto* const list : {&parent_, &child_, &sibling_}) {
      if (static_cast<std::int64_t>(list->capacity()) < tokens) list->reserve(static_cast<std::size_t>(std::max(tokens, 3 * tokens / 2)));
    }
  }

  std::vector<std::int32_t> parent_, child_, sibling_;                                              // (tokens)
  std::int32_t root_ = -1;
};

}  // namespace kvx
