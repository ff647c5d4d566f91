#pragma once
// The k largest of many scores on the host, by a histogram and a look at the one bin that the threshold falls into.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/sketch/top_k.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

namespace host_top_k {

/// Bits of a digit of score_order, from the top: 8 of the exponent, the sign, and 2 of the mantissa come first.
inline constexpr int digit_bits[] = {11, 11, 10};
inline constexpr int most_bins = 1 << 11;

/// Scores of the threshold's bin that are kept on the stack; of more, the order is found digit by digit.
inline constexpr std::int64_t most_kept = 2048;

/// Scores whose digits above are those of `order`, counted by the digit of `bits` bits above `shift`.
struct digit_counts {
  std::uint32_t counts[2][most_bins] = {};  // two: neighbours often fall into one bin, and would wait for each other

  digit_counts(std::span<const float> scores, std::uint32_t order, int shift, int bits) {
    const std::uint64_t above = std::uint64_t{order} >> (shift + bits);
    const std::uint32_t mask = (1u << bits) - 1;
    for (std::size_t t = 0; t < scores.size(); ++t) {
      const std::uint64_t digits = score_order(scores[t]) >> shift;
      if (digits >> bits == above) ++counts[t % 2][digits & mask];
    }
  }
  std::int64_t of(std::uint32_t bin) const { return std::int64_t{counts[0][bin]} + counts[1][bin]; }

  /// The bin of the k-th largest; k becomes its rank within the bin.
  std::uint32_t find(std::int64_t& k, std::uint32_t bin) const {
    for (; of(bin) < k; --bin) k -= of(bin);
    return bin;
  }
};

/// Order of the k-th largest of the scores whose first digit is that of `order`; k becomes how many of exactly that order are taken.
inline std::uint32_t refine(std::span<const float> scores, std::uint32_t order, std::int64_t& k) {
  int shift = 32 - digit_bits[0];
  for (const int bits : {digit_bits[1], digit_bits[2]}) {
    shift -= bits;
    order |= digit_counts(scores, order, shift, bits).find(k, (1u << bits) - 1) << shift;
  }
  return order;
}

/// Takes all orders above `order` and the first `ties` equal to it.
template <class Position>
void take_in_order(std::span<const float> scores, std::uint32_t order, std::int64_t ties, std::int64_t count, Position* positions) {
  for (std::size_t t = 0; count > 0; ++t) {
    const std::uint32_t here = score_order(scores[t]);
    if (here < order || (here == order && ties-- <= 0)) continue;
    *positions++ = static_cast<Position>(t);
    --count;
  }
}

/// Takes all scores of bins above that of `order`, which are `above`, and the k largest inside it, of which it holds at most most_kept.
template <class Position>
void take_bin(std::span<const float> scores, std::uint32_t order, std::int64_t above, std::int64_t k, Position* positions) {
  constexpr int shift = 32 - digit_bits[0];
  Position kept[most_kept];
  std::uint32_t orders[most_kept], sorted[most_kept] = {};
  std::int64_t taken = 0, n = 0;
  const std::uint32_t bin = order >> shift;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    const std::uint32_t here = score_order(scores[t]);
    if (here < order) continue;
    if (here >> shift == bin) {
      kept[n] = static_cast<Position>(t);
      orders[n++] = here;
    } else {
      positions[taken++] = static_cast<Position>(t);
    }
  }
  std::copy_n(orders, n, sorted);
  std::nth_element(sorted, sorted + (k - 1), sorted + n, [](auto a, auto b) { return a > b; });
  const std::uint32_t least = sorted[k - 1];
  std::int64_t ties = k - std::count_if(orders, orders + n, [&](std::uint32_t x) { return x > least; });
  std::int64_t chosen = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (orders[i] < least || (orders[i] == least && ties-- <= 0)) continue;
    kept[chosen++] = kept[i];
  }
  for (std::int64_t to = above + k; chosen > 0; --to)  // from the end, where there is room
    positions[to - 1] = taken > 0 && positions[taken - 1] > kept[chosen - 1] ? positions[--taken] : kept[--chosen];
}

}  // namespace host_top_k

/// Positions of the k largest scores.
///
/// what        score a goes before score b if it is larger, or equal at a lower position; NaN is never taken
/// shapes      scores (C), C < 2^31; positions (at least min(k, C)): the first `taken` are written, ascending
/// cost        two passes over the scores, no sort, no memory; one thread: callers have many heads. Where more than 2,048 scores share
///             sign, exponent and two bits with the k-th largest, four passes
/// exactness   exact
/// errors      usage_error for a negative k, for too many scores, or too few positions
template <class Position>
top_k_result top_k(const host&, std::span<const float> scores, std::int64_t k, std::span<Position> positions,
                   call_site where = call_site::here()) {
  const auto count = static_cast<std::int64_t>(scores.size());
  require_range("top_k: k", k, 0, INT64_MAX, where);
  require_range("top_k: scores", count, 0, INT32_MAX, where);
  require_range("top_k: positions", static_cast<std::int64_t>(positions.size()), std::min(k, count), INT64_MAX, where);
  using namespace host_top_k;
  constexpr int shift = 32 - digit_bits[0];
  static_assert(score_order(-infinity) >> shift > 0);  // so bin 0 holds the NaNs alone
  const digit_counts counts(scores, 0, shift, digit_bits[0]);
  const std::int64_t nans = counts.of(0);
  const top_k_result result{std::min(k, count - nans), nans};
  if (result.taken == 0) return result;
  std::int64_t within = result.taken;
  const std::uint32_t bin = counts.find(within, most_bins - 1);
  if (counts.of(bin) <= most_kept) {
    take_bin(scores, bin << shift, result.taken - within, within, positions.data());
  } else {
    const std::uint32_t order = refine(scores, bin << shift, within);
    take_in_order(scores, order, within, result.taken, positions.data());
  }
  return result;
}

}  // namespace kvx
