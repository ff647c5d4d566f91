#pragma once
// The k largest of many scores, exactly: the order of scores as integers, and what a selection tells.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>

#include <cstdint>

namespace kvx {

/// Integers in the order of the scores: a < b as floats if and only if score_order(a) < score_order(b). -0 equals 0; NaN is 0, below
/// all others.
KVX_HD constexpr std::uint32_t score_order(float score) {
  if (is_nan(score)) return 0;
  const auto bits = __builtin_bit_cast(std::uint32_t, score + 0.0f);  // -0 + 0 is 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
static_assert(score_order(-0.0f) == score_order(0.0f) && score_order(-infinity) > score_order(quiet_nan));
static_assert(score_order(-2) < score_order(-1) && score_order(-0x1p-149f) < score_order(0) && score_order(0) < score_order(0x1p-149f) &&
              score_order(largest_float) < score_order(infinity));

/// The score of an order that is not a NaN's.
KVX_HD constexpr float score_of(std::uint32_t order) {
  return __builtin_bit_cast(float, (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}
static_assert(score_of(score_order(1.5f)) == 1.5f && score_of(score_order(-3)) == -3 && score_of(score_order(infinity)) == infinity);

/// Outcome of a selection.
///
/// taken       positions written: the smaller of k and the number of scores that are not NaN
/// nans        scores that are NaN; they are never taken
struct top_k_result {
  std::int64_t taken = 0;
  std::int64_t nans = 0;

  friend constexpr bool operator==(const top_k_result&, const top_k_result&) = default;
};

}  // namespace kvx
