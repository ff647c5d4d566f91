#pragma once
// The reranker that keeps whole pages: those that hold the most candidates.

#include <kvx/index/group_rule.hpp>

namespace kvx {

/// All tokens of the keep / P pages of the layout that hold the most candidates; ties go to the lowest page, and a page without a candidate
/// is never kept. For rows that are fetched page by page. `keep` below P keeps nothing but residents and is refused, 0 aside. A key that is
/// never found is left out where the sketch has norms; without, it may be attended to.
struct fullest_pages {
  group_rule rule{.by = group_rule::kind::max};
};

}  // namespace kvx
