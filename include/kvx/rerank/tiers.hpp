#pragma once
// Tiers: which tokens take part in attention that are not attended to exactly, and what is kept for them.

#include <kvx/core/annotate.hpp>

namespace kvx {

/// What a reranker leaves for tokens whose rows are not read.
///
/// value_bits  of a coordinate of V's code: 2 or 4, 0 for none. A candidate that is not among the exact rows takes part with the logit of
///             its K code and its coded V
/// tail        the tokens of the zone that are no candidates take part page by page: the mean of their keys, the mean of their values,
///             as often as they are
/// source      ours: docs/tiers.md. No tiers: ParisKV as published, in which the rest counts nothing
struct tiers {
  int value_bits = 0;
  bool tail = false;

  friend constexpr bool operator==(const tiers&, const tiers&) = default;
};

KVX_HD constexpr bool is_valid(const tiers& t) { return t.value_bits == 0 || t.value_bits == 2 || t.value_bits == 4; }
KVX_HD constexpr bool any(const tiers& t) { return t.value_bits > 0 || t.tail; }

/// What a reranker leaves; nothing if it says nothing.
template <class Reranker>
constexpr tiers tiers_of() {
  if constexpr (requires { Reranker::others; }) return Reranker::others;
  return {};
}

}  // namespace kvx
