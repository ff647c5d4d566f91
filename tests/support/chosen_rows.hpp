#pragma once
// Attention over chosen rows as it is defined: in double precision, two passes. The specification of attend_rows.

#include <kvx/attend/rows.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvx::test {

struct rows_reference {
  std::vector<double> out;  // (G, Dv), divided
  std::vector<double> lse;  // (G)
};

/// Tokens of a set, ranges first.
inline std::vector<std::int64_t> tokens_of(const row_set& set) {
  std::vector<std::int64_t> tokens;
  for (const token_range& r : set.ranges) {
    for (std::int64_t t = r.begin; t < r.end; ++t) tokens.push_back(t);
  }
  tokens.insert(tokens.end(), set.ids.begin(), set.ids.end());
  return tokens;
}

template <class E, class T>
rows_reference attend_chosen(const row_view<const E>& rows, const std::int32_t* pages, std::int64_t head, const tensor_view<const T, 2>& q,
                             const row_set& set, const row_options& o) {
  const std::int64_t G = q.extents[0], D = rows.key_dim, Dv = rows.value_dim;
  const std::vector<std::int64_t> tokens = tokens_of(set);
  const double scale = o.scale != 0 ? static_cast<double>(o.scale) : 1 / std::sqrt(static_cast<double>(D));
  rows_reference r{std::vector<double>(static_cast<std::size_t>(G * Dv)), std::vector<double>(static_cast<std::size_t>(G))};
  for (std::int64_t g = 0; g < G; ++g) {
    std::vector<double> scores;
    for (const std::int64_t t : tokens) {
      const E* const k = rows.key.at(pages[t / rows.page_tokens], head, t % rows.page_tokens);
      double score = 0;
      for (std::int64_t d = 0; d < D; ++d) score += static_cast<double>(to_float(*q.at(g, d))) * static_cast<double>(to_float(k[d]));
      score *= scale;
      if (o.soft_cap > 0) score = static_cast<double>(o.soft_cap) * std::tanh(score / static_cast<double>(o.soft_cap));
      scores.push_back(score);
    }
    r.lse[static_cast<std::size_t>(g)] = -std::numeric_limits<double>::infinity();
    if (tokens.empty()) continue;
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double s : scores) sum += std::exp(s - max);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const E* const v = rows.value.at(pages[tokens[i] / rows.page_tokens], head, tokens[i] % rows.page_tokens);
      for (std::int64_t d = 0; d < Dv; ++d)
        r.out[static_cast<std::size_t>(g * Dv + d)] += std::exp(scores[i] - max) / sum * static_cast<double>(to_float(v[d]));
    }
    r.lse[static_cast<std::size_t>(g)] = max + std::log(sum);
  }
  return r;
}

}  // namespace kvx::test
