#pragma once
// Attention in tiers: what is asked of tokens whose rows are not read, and the scalar rules.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>
#include <kvx/rerank/tiers.hpp>

#include <cstdint>

namespace kvx {

/// Which tiers take part in one call, beside the exact rows; only those that the composition keeps codes for can.
///
/// coded       the candidates that are not among the exact rows
/// tail        the rest of the zone
/// skip        V of a coded row is read where the row's weight, added up over the heads of the group, is at least skip / candidates of
///             all weights. Others get the mean of their page for it, so a head's output moves by at most `skip` times the largest
///             distance of a value from the mean of its page, and by less the fewer rows come near the bound. 0: every V is read
struct tier_options {
  bool coded = true;
  bool tail = true;
  float skip = .125f;

  KVX_HD constexpr bool any() const { return coded || tail; }
};

/// Those that a call wants and a composition has.
constexpr tier_options tiers_used(const tiers& kept, const tier_options& wanted) {
  return {kept.value_bits > 0 && wanted.coded, kept.tail && wanted.tail, wanted.skip};
}

/// A page with fewer tokens left than this, once its candidates are taken out, has no tail: what is left is taken as coded, since the
/// mean of few is too rough when it is found by taking many away. Where no rows are coded it counts nothing.
inline constexpr int fewest_in_tail = 8;

/// Candidates of a zone at most, those included that pages without a tail are taken as coded for.
///
/// what        a page that lies whole in the zone has no tail where at least P - 7 of its tokens were proposed; of two pages a part lies in
///             the zone at most. Pages that hold a key that is never found may add a 32nd of the zone: where all of them together would
///             go beyond, those pages keep what was proposed of them, and their other tokens count nothing
/// wanted      how many tokens a search was asked for
KVX_HD constexpr std::int64_t most_in_codes(std::int64_t zone, std::int64_t wanted, std::int64_t page_tokens) {
  if (page_tokens < fewest_in_tail) return zone;
  const std::int64_t most = wanted * page_tokens / (page_tokens - fewest_in_tail + 1) + 2 * page_tokens + zone / 32;
  return most < zone ? most : zone;
}
static_assert(most_in_codes(131072, 6554, 64) == 6554 * 64 / 57 + 128 + 4096 && most_in_codes(100, 1, 4) == 100);

/// The logit of what is left of a page: the mean of its keys' logits.
///
/// what        keys are coded relative to their mean, so all their deviations add up to nothing, and those of the tokens left are what the
///             members' are not
/// term        scale q.mean of the page
/// members     sum over the tokens taken out of (logit - term), by their codes
/// left        tokens left, at least 1
KVX_HD constexpr float tail_logit(float term, float members, std::int64_t left) { return term - members / static_cast<float>(left); }
static_assert(tail_logit(1, 6, 3) == -1);

}  // namespace kvx
