#pragma once
// Attention of decode steps over what retrieval finds: what is asked, independent of who computes it.

#include <kvx/attend/tiers.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>

namespace kvx {

/// How `keep` is meant.
///
/// head        so many rows for each KV head
/// layer       as many in all, for the KV heads of a layer together: the best of all their scores, which the softmax sum makes comparable
/// mass        a head takes rows until those and the residents hold `mass`, 0 to 1, of its attention by the estimates; at most `keep`.
///             Needs a reranker by the softmax sum; on the host alone
/// source      ours: docs/results.md, attention in tiers
struct retrieve_budget {
  enum class kind : std::uint8_t { head, layer, mass };
  kind of = kind::head;
  float mass = .95f;
};

/// Budget and breadth of one call.
///
/// keep        retrieved tokens that take part, per KV head; more than the zone holds makes attention dense
/// breadth     how many candidates the index proposes
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
/// budget      what `keep` counts
/// others      which tiers take part, where the composition has any; with tiers, keep may be 0
struct retrieve_options {
  std::int64_t keep = 256;
  search_breadth breadth = {};
  float scale = 0;
  float soft_cap = 0;
  tier_options others = {};
  retrieve_budget budget = {};
};

/// A sequence shorter than this is attended to densely: retrieval would read as much.
/// source: ParisKV (arXiv 2602.07721) section 4
KVX_HD constexpr std::int64_t dense_below(zones z, std::int64_t keep) {
  const std::int64_t always = std::int64_t{z.sink} + z.local + 2 * (keep < std::int64_t{1} << 40 ? keep : std::int64_t{1} << 40);
  return always > 2000 ? always : 2000;
}

/// More new tokens of one sequence than this are a prompt, and attend densely.
inline constexpr std::int64_t most_retrieving_tokens = 32;

}  // namespace kvx
