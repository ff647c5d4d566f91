#pragma once
// The tokens that a tree promotes, level by level: what a device looks through for parents and for a beam.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/index/dci_tree.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Positions of promoted tokens, which are the same in every sequence and head. Trivially copyable.
///
/// shapes      positions: those of level 1, ascending, then those of level 2, ...; level l begins at first[l]
struct promoted_tokens {
  const std::int32_t* positions = nullptr;
  std::int32_t first[most_dci_level + 2] = {};

  KVX_HD constexpr std::int64_t count() const { return first[most_dci_level + 1]; }
  KVX_HD constexpr const std::int32_t* of(int level) const { return positions + first[level]; }

  /// Tokens of a level that stand before a position.
  KVX_HD constexpr std::int64_t before(int level, std::int64_t position) const {
    const std::int32_t* const list = of(level);
    std::int64_t low = 0, high = first[level + 1] - first[level];
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (list[middle] < position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};
static_assert([] {
  constexpr std::int32_t positions[5] = {3, 8, 9, 20, 8};
  promoted_tokens x{positions, {0, 0, 4}};
  for (int level = 3; level <= most_dci_level + 1; ++level) x.first[level] = 5;
  return x.count() == 5 && x.before(1, 0) == 0 && x.before(1, 9) == 2 && x.before(1, 99) == 4 && x.before(2, 9) == 1 && x.before(3, 9) == 0;
}());

/// Tokens of any one level among the first `tokens` at most: a promoted_list sees to it.
KVX_HD constexpr std::int64_t most_promoted(const dci_shape& s, std::int64_t tokens) {
  const std::int64_t most = ceil_div(tokens * s.first_promotion, 800) + 128;
  return most < tokens ? most : tokens;
}
static_assert(most_promoted({}, 131072) == 5044 && most_promoted({}, 100) == 100);

/// The promoted tokens among the first so many, in host memory.
///
/// cost        looks at every position once, 4 bytes for each promoted token
/// errors      usage_error: a seed that promotes a quarter more than it should
class promoted_list {
 public:
  promoted_list(const dci_shape& shape, std::int64_t tokens, call_site where = call_site::here()) {
    std::array<std::vector<std::int32_t>, most_dci_level + 1> levels;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto level = static_cast<std::size_t>(level_of(shape, t));
      if (level == 0) continue;
      levels[level].push_back(static_cast<std::int32_t>(t));
      require(std::ssize(levels[level]) <= most_promoted(shape, t + 1), "dci_shape::seed: it promotes more tokens than there is room for",
              where);
    }
    for (std::size_t level = 1; level < levels.size(); ++level) {
      tokens_.first[level] = static_cast<std::int32_t>(positions_.size());
      positions_.insert(positions_.end(), levels[level].begin(), levels[level].end());
    }
    tokens_.first[levels.size()] = static_cast<std::int32_t>(positions_.size());
  }

  std::span<const std::int32_t> positions() const { return positions_; }

  /// The same where a copy of the positions lies.
  promoted_tokens at(const std::int32_t* positions) const {
    promoted_tokens result = tokens_;
    result.positions = positions;
    return result;
  }

 private:
  std::vector<std::int32_t> positions_;
  promoted_tokens tokens_;
};

}  // namespace kvx
