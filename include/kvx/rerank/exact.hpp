#pragma once
// The reranker that reads the rows themselves.

#include <kvx/index/group_rule.hpp>

namespace kvx {

/// Reranking by true logits: what the others are measured against, and right where keys lie in fast memory and candidates are few.
///
/// rule        how the heads of a group rank a token together
/// exactness   float dot products, the order of attention
struct exact {
  group_rule rule;
};

}  // namespace kvx
