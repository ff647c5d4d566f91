#pragma once
// How the query heads of a group, which share one selection, rank a token together.

#include <kvx/core/annotate.hpp>
#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>

#include <cstdint>

namespace kvx {

/// The rule, used by index, reranker and page ranking alike.
///
/// mean          of the heads' logits, which is the logit of the mean query: the faithful rule
/// max           of the heads' logits
/// softmax_sum   sum over heads of exp(logit - Z), Z the log-sum-exp of the head's candidates and of what is attended anyway
/// source        ParisKV (arXiv 2602.07721) takes the mean; docs/results.md: the sum captures most attention
struct group_rule {
  enum class kind : std::uint8_t { mean, max, softmax_sum };
  kind by = kind::softmax_sum;

  friend constexpr bool operator==(const group_rule&, const group_rule&) = default;
};

/// Mean of the group's logits of one token.
///
/// shapes      logits (G), `stride` apart
/// exactness   sum in double, ascending
KVX_HD constexpr float mean_score(const float* logits, std::int64_t stride, int count) {
  double sum = 0;
  for (int g = 0; g < count; ++g) sum += static_cast<double>(logits[g * stride]);
  return static_cast<float>(sum / count);
}

/// Largest of the group's logits of one token; NaN if one is.
KVX_HD constexpr float max_score(const float* logits, std::int64_t stride, int count) {
  float result = logits[0];
  for (int g = 1; g < count; ++g) {
    const float x = logits[g * stride];
    if (x > result || is_nan(x)) result = x;
    if (is_nan(result)) break;
  }
  return result;
}

/// One head's part in the softmax sum.
///
/// what        exp(logit - Z) = exp(logit - max) share(...), so that no logit passes through exp twice
/// max         of the head's candidates (NaN left out) and of its resident log-sum-exp
/// sum         of fixed_point(quick_exp(logit - max)) over the candidates, NaN left out
/// resident    log-sum-exp of the exact logits that are attended anyway; -inf for none, NaN counts as none
/// returns     1 / (sum of the candidates' and residents' exponentials); 0 for a head that has neither
KVX_HD constexpr float softmax_share(float max, std::int64_t sum, float resident) {
  if (max == -infinity) return 0;
  const double all = from_fixed_point(sum) + static_cast<double>(is_nan(resident) ? 0.0f : exp(resident - max));
  return all > 0 ? static_cast<float>(1 / all) : 0.0f;
}
static_assert(softmax_share(3, fixed_point(1) * 3, 3) == 0.25f && softmax_share(-infinity, 0, -infinity) == 0);

}  // namespace kvx
