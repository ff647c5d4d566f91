#pragma once
// What a cache is made of: one policy for each stage.

#include <kvx/index/full_scan.hpp>

namespace kvx {

/// A composition of policies. The values are kept by the cache; the types decide what is compiled.
///
/// layout      where rows lie: `paged`, `contiguous`
/// index       what proposes candidates: `full_scan`
template <class Layout, index_policy Index = full_scan>
struct spec {
  using layout_type = Layout;
  using index_type = Index;

  Index index{};
};

}  // namespace kvx
