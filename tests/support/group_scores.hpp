#pragma once
// Scores of a group of heads by their definition, with the exponential and the fixed point of core.

#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/group_rule.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::test {

/// shapes      logits (heads, tokens); resident (heads) or empty; result (tokens)
inline std::vector<float> group_scores_slowly(group_rule::kind rule, const std::vector<float>& logits, std::int64_t heads,
                                              std::int64_t tokens, const std::vector<float>& resident) {
  const auto at = [&](std::int64_t g, std::int64_t t) { return logits[static_cast<std::size_t>(g * tokens + t)]; };
  std::vector<float> base, share, scores;
  for (std::int64_t g = 0; g < heads; ++g) {
    const float r = resident.empty() ? -infinity : resident[static_cast<std::size_t>(g)];
    float m = is_nan(r) ? -infinity : r;
    for (std::int64_t t = 0; t < tokens; ++t) m = at(g, t) > m ? at(g, t) : m;
    base.push_back(m == -infinity ? 0 : m);
    std::int64_t sum = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float e = quick_exp(at(g, t) - base.back());
      if (!is_nan(e)) sum += fixed_point(e);
    }
    share.push_back(softmax_share(m, sum, r));
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    float weighted = 0, most = -infinity;
    for (std::int64_t g = 0; g < heads; ++g) {
      const auto i = static_cast<std::size_t>(g);
      const float x = at(g, t);
      weighted += rounded_product(quick_exp(x - base[i]), share[i]);
      sum += static_cast<double>(x);
      most = is_nan(x) || is_nan(most) ? quiet_nan : x > most ? x : most;
    }
    const bool mean = rule == group_rule::kind::mean;
    scores.push_back(rule == group_rule::kind::softmax_sum ? weighted : mean ? static_cast<float>(sum / static_cast<double>(heads)) : most);
  }
  return scores;
}

}  // namespace kvx::test
