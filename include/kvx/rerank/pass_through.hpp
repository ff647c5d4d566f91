#pragma once
// The reranker that trusts the index: its order of the candidates stands.

#include <kvx/index/group_rule.hpp>

namespace kvx {

/// No reranking: all candidates tie, so that of more than `keep` the first ones stay. An index behind it proposes what is kept.
/// A key with NaN or infinity is left out where the sketch has norms; without, it may be attended to.
struct pass_through {
  group_rule rule{.by = group_rule::kind::max};
};

}  // namespace kvx
