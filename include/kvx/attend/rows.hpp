#pragma once
// Attention of a group of queries over chosen rows of one sequence and KV head: what is asked, independent of who computes it.

#include <kvx/attend/softmax_state.hpp>
#include <kvx/core/annotate.hpp>

#include <cstdint>
#include <span>

namespace kvx {

/// Tokens begin .. end - 1; empty where end <= begin.
struct token_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  KVX_HD constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
  friend constexpr bool operator==(const token_range&, const token_range&) = default;
};

/// The rows that take part. A token that is named twice counts twice.
///
/// ranges      such as the sink and the recent zone
/// ids         such as the selection, in any order; ascending ones are read fastest
struct row_set {
  std::span<const token_range> ranges;
  std::span<const std::int32_t> ids;

  constexpr std::int64_t size() const {
    auto n = static_cast<std::int64_t>(ids.size());
    for (const token_range& r : ranges) n += r.size();
    return n;
  }
};

/// What is done to a score.
///
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
struct row_options {
  float scale = 0;
  float soft_cap = 0;
};

}  // namespace kvx
