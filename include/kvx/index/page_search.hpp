#pragma once
// What a search for semantic pages is asked, and what it tells.

#include <kvx/core/annotate.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/group_rule.hpp>

#include <cstdint>

namespace kvx {

/// Breadth of one search; per call.
///
/// pages       at most so many are found
/// beam        best_member: tokens of level 1 whose children are looked at, and upper_breadth times as many above; 0: default_beam();
///             from the number of tokens on, all are
/// nearest     best_member with composite indices: of the children of a beam, those are looked at that one of the indices has among so
///             many nearest ones; 0: all
/// probes      mean_then_member: pages whose tokens are looked at; two_level_means: blocks whose pages are; 0: default_probes()
/// spread      how many spreads a page's best member may lie above its mean
/// rule        how the heads of a group rank a page, a token of a beam, a mean together
/// interleave  instead of the rule's best pages, each head's best, second best, ..., until so many are found
/// source      nearest: Prioritized DCI (arXiv 1703.00440); interleave: IceCache (arXiv 2604.10539); the softmax sum
///             is ours, and captures more
struct page_search {
  int pages = 12;
  int beam = 0;
  int nearest = 0;
  int probes = 0;
  float spread = 2.5f;
  group_rule rule = {};
  bool interleave = false;
};

/// Sixteen, and of long sequences one token of 500.
KVX_HD constexpr std::int64_t default_beam(std::int64_t tokens) { return tokens < 8000 ? 16 : tokens / 500; }

/// Above level 1, so many times the beam are followed: there are few tokens, and what is lost there is lost for good.
inline constexpr std::int64_t upper_breadth = 4;

/// mean_then_member: pages are looked at until the next one promises less than so many times what the last of those found is
/// worth; on the example model means and tokens together are .12 inner products a token, and heads where one token hides get four times the
/// pages of others.
inline constexpr float probe_margin = 2.5f;

/// Pages that are looked at before the first one is asked what it promises: as many as are found, or a sixtieth of those beyond 512 if
/// that is more. The more pages there are, the more of them promise a little less than the next one does.
KVX_HD constexpr std::int64_t first_probes(std::int64_t pages, std::int64_t found) {
  const std::int64_t many = pages > 512 ? (pages - 512) / 60 : 0;
  return found > many ? found : many;
}

/// mean_then_member, where means are coded and probes are not asked for: of zones of 2,048 pages and more, pages whose means are looked at
/// exactly, those that their codes propose. A sixteenth, at least 512, and sixteen for each that is found; all, if that is more than
/// half of them.
KVX_HD constexpr std::int64_t proposed_pages(std::int64_t pages, std::int64_t found) {
  std::int64_t wanted = pages / 16 > 512 ? pages / 16 : 512;
  if (wanted < 16 * found) wanted = 16 * found;
  return pages < 2048 || wanted > pages / 2 ? pages : wanted;
}
static_assert(proposed_pages(2047, 12) == 2047 && proposed_pages(8190, 12) == 512 && proposed_pages(8190, 300) == 8190);

/// mean_then_member: at most two ninths of the pages, at least two for each that is found. two_level_means: an eighth of the blocks, at
/// least four.
KVX_HD constexpr std::int64_t default_probes(const dci_shape& s, int page_tokens, std::int64_t tokens, std::int64_t pages) {
  const bool blocks = s.rank == dci_shape::ranking::two_level_means;
  const std::int64_t share = blocks ? tokens / s.block / 8 : tokens / page_tokens * 2 / 9, least = blocks ? 4 : 2 * pages;
  return share > least ? share : least;
}

/// Outcome of a search.
///
/// found       pages written, best first; fewer than asked for where fewer hold a key that can be found
/// keys        inner products with keys, or with their codes, each once for all heads of the group
/// means       inner products with means, or with their codes
struct page_search_result {
  std::int64_t found = 0;
  std::int64_t keys = 0;
  std::int64_t means = 0;

  friend constexpr bool operator==(const page_search_result&, const page_search_result&) = default;
};

/// What a search is asked.
///
/// queries     (G, D), plain
/// resident    (G) log-sum-exp of each head's exact logits of what is attended anyway; null, or NaN for a head: none
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// begin, end  the retrieval zone: whole pages, `end` whole blocks that are indexed
struct page_query {
  tensor_view<const float, 2> queries;
  const float* resident = nullptr;
  float scale = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

}  // namespace kvx
