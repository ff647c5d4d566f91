#pragma once
// The k largest of many scores on the host, by histograms of their digits.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/sketch/top_k.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

namespace host_top_k {

/// Bits of a digit of score_order, from the top: the histogram of the first digit holds every score, those of the others only the
/// scores that share all digits above with the threshold.
inline constexpr int digit_bits[] = {11, 11, 10};
inline constexpr int most_bins = 1 << 11;

/// Smallest order that is taken, and how many scores of exactly that order are.
struct threshold {
  std::uint32_t order = 0;
  std::int64_t ties = 0;
};

/// The order of the k-th largest score, 1 <= k <= scores.size().
inline threshold find_threshold(std::span<const float> scores, std::int64_t k) {
  threshold result{0, k};
  int shift = 32;
  for (const int bits : digit_bits) {
    std::uint32_t counts[2][most_bins] = {};  // two: neighbours often fall into one bin, and would wait for each other
    const std::uint32_t above = shift == 32 ? 0 : result.order >> shift;
    shift -= bits;
    const std::uint32_t mask = (1u << bits) - 1;
    for (std::size_t t = 0; t < scores.size(); ++t) {
      const std::uint64_t digits = score_order(scores[t]) >> shift;
      if (digits >> bits == above) ++counts[t % 2][digits & mask];
    }
    std::uint32_t bin = mask;
    for (;; --bin) {
      const std::int64_t here = std::int64_t{counts[0][bin]} + counts[1][bin];
      if (here >= result.ties) break;
      result.ties -= here;
    }
    result.order |= bin << shift;
  }
  return result;
}

}  // namespace host_top_k

/// Positions of the k largest scores.
///
/// what        score a goes before score b if it is larger, or equal at a lower position; NaN is never taken
/// shapes      scores (C), C < 2^31; positions (at least min(k, C)): the first `taken` are written, ascending
/// cost        four passes over the scores, no sort, no memory; one thread: callers have many heads
/// exactness   exact
/// errors      usage_error for a negative k, for too many scores, or too few positions
template <class Position>
top_k_result top_k(const host&, std::span<const float> scores, std::int64_t k, std::span<Position> positions,
                   call_site where = call_site::here()) {
  const auto count = static_cast<std::int64_t>(scores.size());
  require_range("top_k: k", k, 0, INT64_MAX, where);
  require_range("top_k: scores", count, 0, INT32_MAX, where);
  require_range("top_k: positions", static_cast<std::int64_t>(positions.size()), std::min(k, count), INT64_MAX, where);
  top_k_result result;
  for (const float score : scores) result.nans += is_nan(score) ? 1 : 0;
  result.taken = std::min(k, count - result.nans);
  if (result.taken == 0) return result;

  auto [order, ties] = host_top_k::find_threshold(scores, result.taken);
  std::int64_t taken = 0;
  for (std::size_t t = 0; taken < result.taken; ++t) {
    // Without branches: the next position is written in any case, and kept if it is taken.
    const std::uint32_t here = score_order(scores[t]);
    const std::int64_t tie = here == order ? 1 : 0;
    positions[static_cast<std::size_t>(taken)] = static_cast<Position>(t);
    taken += (here > order ? 1 : 0) | (ties > 0 ? tie : 0);
    ties -= tie;
  }
  return result;
}

}  // namespace kvx
