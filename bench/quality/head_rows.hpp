#pragma once
// Keys and queries of one KV head as a model computed them for a text, and what is exactly true of them.

#include <kvx/sketch/balance.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quality {

/// One KV head of one layer.
///
/// shapes      keys (T, D) of positions 0, 1, ..., rounded to bf16 as a cache holds them; queries (positions, G, D);
///             early_queries (n, G, D): those that a cache learns its balance from; eighth_queries (T / 8, G, D): those of positions 7, 15,
///             ...
struct head_rows {
  int dim = 0;
  int group = 0;
  kvx::rope_pairs pairs;
  std::vector<float> keys;
  std::vector<float> queries;
  std::vector<std::int64_t> positions;
  std::vector<float> early_queries;
  std::vector<float> eighth_queries;

  std::int64_t tokens() const { return static_cast<std::int64_t>(keys.size()) / dim; }
  const float* key(std::int64_t t) const { return keys.data() + t * dim; }
  const float* query(std::size_t position, int g) const { return queries.data() + (static_cast<std::int64_t>(position) * group + g) * dim; }
  const float* eighth_query(std::int64_t eighth, int g) const { return eighth_queries.data() + (eighth * group + g) * dim; }
  float scale() const;
};

/// Tokens that a query at `position` retrieves from.
struct searched {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

inline constexpr std::int64_t sink = 4;
inline constexpr std::int64_t local = 256;
inline constexpr searched zone_of(std::int64_t position) { return {sink, position - local}; }

/// The balance of keys and early queries at positions [sink, 1,024).   (D)
std::vector<float> balance_of(const head_rows& head, const kvx::rope_pairs& pairs);

/// Logits of tokens [0, position] for every head of the group, in nats.   (G, position + 1)
std::vector<float> exact_logits(const head_rows& head, std::size_t position);

/// The `count` tokens of a zone with the largest mean of the group's exact logits, ascending; the lowest token first among equals.
std::vector<std::int32_t> exact_best(std::span<const float> logits, int group, const searched& zone, std::int64_t count);

/// Share of the wanted tokens that were found; both ascending.
double recall(std::span<const std::int32_t> wanted, std::span<const std::int32_t> found);

}  // namespace quality
