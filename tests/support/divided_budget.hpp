#pragma once
// The definition of a budget that the heads of a layer share.

#include <kvx/core/math.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::test {

/// Which candidates of each head are kept, ascending: the `budget` best scores of all, ties to the lowest head, then the lowest candidate;
/// NaN never.   of_heads (heads)(C)
inline std::vector<std::vector<std::size_t>> divided_budget(const std::vector<std::vector<float>>& of_heads, std::int64_t budget) {
  struct place {
    float score;
    std::size_t head, at;
  };
  std::vector<place> all;
  for (std::size_t h = 0; h < of_heads.size(); ++h) {
    for (std::size_t i = 0; i < of_heads[h].size(); ++i) {
      if (!is_nan(of_heads[h][i])) all.push_back({of_heads[h][i], h, i});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const place& a, const place& b) { return a.score > b.score; });
  if (std::ssize(all) > budget) all.resize(static_cast<std::size_t>(budget));
  std::vector<std::vector<std::size_t>> kept(of_heads.size());
  for (const place& p : all) kept[p.head].push_back(p.at);
  for (auto& of_head : kept) std::sort(of_head.begin(), of_head.end());
  return kept;
}

}  // namespace kvx::test
