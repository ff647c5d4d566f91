#pragma once
// Attention in tiers: what is asked of tokens whose rows are not read, and the scalar rules.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>

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
};

/// A page with fewer tokens left than this, once its candidates are taken out, has no tail: what is left is taken as coded, since the
/// mean of few is too rough when it is found by taking many away. Where no rows are coded it counts nothing.
inline constexpr int fewest_in_tail = 8;

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
