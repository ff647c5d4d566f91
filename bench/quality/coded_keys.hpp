#pragma once
// The keys of one head under a sketch, searched and ranked by the library's own stages on plain views.

#include "head_rows.hpp"

#include <kvx/backend/memory.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace quality {

/// Pages of one KV head, encoded once; then any number of searches.
///
/// shapes      keys (T, D), whole pages: what lies behind the last one is not coded; balance (D) or empty: all 1
class coded_keys {
 public:
  coded_keys(std::span<const float> keys, int dim, const kvx::key_sketch& sketch, std::span<const float> balance, int page_tokens = 64);

  /// The best tokens of a zone by their signs alone: a `fraction` of them, rounded up.
  ///
  /// shapes      queries (G, D)
  /// window      votes: the fraction of the keys whose buckets vote
  std::vector<std::int32_t> candidates(std::span<const float> queries, const searched& zone, const kvx::bucket_scoring& by, double fraction,
                                       double window = 0) const;

  /// Logits of tokens by their codes, in nats.
  ///
  /// shapes      queries (G, D); ids ascending; returned (G, ids)
  std::vector<float> logits(std::span<const float> queries, std::span<const std::int32_t> ids) const;

  /// The `keep` best of all tokens of a zone by their codes.
  ///
  /// shapes      queries (G, D); resident (G): log-sum-exp of each head's exact logits of what is attended anyway, or empty
  std::vector<std::int32_t> best_by_code(std::span<const float> queries, const searched& zone, kvx::group_rule rule,
                                         std::span<const float> resident, std::int64_t keep) const;

 private:
  /// q / balance, rotated.   (G, D)
  std::vector<float> rotated(std::span<const float> queries) const;

  int dim_;
  kvx::page_shape page_;
  kvx::key_sketch sketch_;
  std::vector<float> balance_;                                          // (D) or none
  std::array<kvx::memory_block, kvx::sketch_column_count> memory_;
  kvx::key_columns columns_;
  std::vector<std::int32_t> pages_;                                     // page j at j
};

}  // namespace quality
