#pragma once
// Scratch of a worker that attends to semantic pages on the host.

#include <kvx/attend/host/head_attention.hpp>
#include <kvx/attend/host/page_tiers.hpp>
#include <kvx/attend/host/rows.hpp>
#include <kvx/attend/host/tiers.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/host/page_search.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvx {

namespace host_pages {

/// Most of what attend_rows needs for up to so many rows: it does not grow with every row.
template <class E>
std::int64_t rows_scratch(const row_view<E>& shape, std::int64_t heads, std::int64_t tokens) {
  const host serial{.threads = 1};
  return std::max(attend_rows_scratch(serial, shape, heads, tokens),
                  attend_rows_scratch(serial, shape, heads, std::min<std::int64_t>(tokens, 65536)));
}

/// Scratch of one worker, for sequences of at most `tokens` tokens.
template <class Reranker>
struct attend_parts {
  head_attention_parts head;
  float* rotated;           // (G, D) where codes are read
  std::int32_t* pages;      // (pages)
  std::int32_t* ids;        // (C)
  std::int32_t* positions;  // (C)
  float* logits;            // (G, C)
  float* scores;            // (C)
  std::int32_t* members;    // (C) where the reranker has tiers
  page_candidates by_page;  // the same
  std::byte* codes;         // of the reranking of members
  std::int64_t codes_bytes = 0;
  std::byte* stage;  // of one stage after the other
  std::int64_t stage_bytes = 0;

  attend_parts(scratch_parts& s, bool coded, const Reranker& reranker, page_shape page, std::int64_t G, std::int64_t tokens)
      : head(s, page, G) {
    const host serial{.threads = 1};
    rotated = s.take<float>(coded ? G * page.key_dim : 0);
    pages = s.take<std::int32_t>(ceil_div(tokens, std::int64_t{page.tokens}));
    ids = s.take<std::int32_t>(tokens);
    positions = s.take<std::int32_t>(tokens);
    logits = s.take<float>(G * tokens);
    scores = s.take<float>(tokens);
    if (coded) codes_bytes = rerank_scratch(serial, rsq_ip<4>{}, page.key_dim, G);  // the same for any number of bits
    codes = s.take<std::byte>(codes_bytes);
    const row_view<const float> shape{{}, {}, 1, page.tokens, page.key_dim, page.value_dim};
    stage_bytes = std::max({rows_scratch(shape, G, tokens), search_pages_bytes(page, static_cast<int>(G), tokens, {.interleave = true}),
                            group_scores_scratch(serial, reranker.rule, G, tokens)});
    if constexpr (!std::is_same_v<Reranker, pass_through>) {
      stage_bytes = std::max(stage_bytes, rerank_scratch(serial, reranker, page.key_dim, G));
    }
    members = s.take<std::int32_t>(any(tiers_of<Reranker>()) ? tokens : 0);
    if constexpr (any(tiers_of<Reranker>())) {
      by_page = page_candidates(s, page, G, tokens);
      stage_bytes = std::max(stage_bytes, attend_tiers_scratch(page, tiers_of<Reranker>().value_bits, G, tokens));
    }
    stage = s.take<std::byte>(stage_bytes);
  }
};

}  // namespace host_pages

}  // namespace kvx
