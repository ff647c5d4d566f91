#pragma once
// The keys of one head in semantic pages, packed, searched and ranked by the library's own stages on plain views.

#include "head_rows.hpp"

#include <kvx/backend/memory.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_lists.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_search.hpp>
#include <kvx/index/query_metric.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace quality {

/// Tokens of each page, ascending.
using page_list = std::vector<std::vector<std::int32_t>>;

/// What semantic pages are measured with.
inline constexpr int page_tokens = 16;
inline constexpr std::int64_t page_sink = 32, page_local = 32, pages_kept = 12;

/// The metric that a cache has learned where a block ends: from every eighth query of the 1,024 tokens before it.
///
/// values      room for D or D * D floats, by `by`
kvx::query_metric metric_at(const head_rows& head, std::int64_t end, kvx::dci_shape::metric by, std::vector<float>& values);

/// Tokens [begin, end) as one block, whatever its size: what a build of the whole packs. The last page may not be full.
page_list packed_whole(const head_rows& head, const kvx::dci_shape& shape, std::int64_t begin, std::int64_t end);

/// All whole blocks of a head, indexed once; then any number of searches.
class indexed_head {
 public:
  indexed_head(const head_rows& head, const kvx::dci_shape& shape);

  /// Pages of tokens [page_sink, end); `end` a multiple of the block.
  page_list pages(std::int64_t end) const;

  /// The parent of a token, where links are kept.
  std::int32_t parent(std::int64_t token) const;

  /// Tokens of the pages that a search finds.
  ///
  /// shapes      queries (G, D); resident (G) or empty
  std::vector<std::int32_t> search(std::span<const float> queries, std::span<const float> resident, std::int64_t end,
                                   const kvx::page_search& options, kvx::page_search_result& result) const;

 private:
  kvx::dci_shape shape_;
  std::vector<kvx::bf16> rows_;                                         // (T, D)
  std::vector<std::int32_t> ids_;                                       // page j at j
  std::vector<kvx::memory_block> memory_;
  kvx::dci_head<kvx::bf16> view_;
  kvx::dci_lists lists_;
};

}  // namespace quality
