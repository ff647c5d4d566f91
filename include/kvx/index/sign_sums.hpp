#pragma once
// The arithmetic of a search by sign sums that host and device share: units, scales and the choice of the words that scores are.

#include <kvx/core/annotate.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/bucket_score.hpp>

#include <cmath>
#include <cstdint>
#include <numbers>

namespace kvx {

/// x with 24 significant bits, so that its product with a float is exact in double.
KVX_HD constexpr double with_float_precision(double x) {
  const auto bits = __builtin_bit_cast(std::uint64_t, x);
  return __builtin_bit_cast(double, (bits + (std::uint64_t{1} << 28)) & ~((std::uint64_t{1} << 29) - 1));
}
static_assert(with_float_precision(1 + 0x1p-25) == 1 && with_float_precision(-3) == -3);

KVX_HD constexpr float size_of(float x) { return x < 0 ? -x : x; }

/// Table entries for one unit of |q_j|, such that sums fit: all largest entries together 255, or where there are too many tables for
/// that (wide) the largest entry 63. 0 for the query 0.
///
/// whole, largest      sum and maximum, over all four coordinates that share a table, of the sum of their |q_j|
KVX_HD constexpr double sign_table_unit(double whole, double largest, bool wide) {
  return whole > 0 ? (wide ? 63 / largest : 255 / whole) : 0;
}

/// n of 2^n <= 2 x < 2^(n + 1), the exponent that frexp gives; 0 for 0.
KVX_HD constexpr int exponent_of(float x) {
  return x > 0 ? static_cast<int>(__builtin_bit_cast(std::uint64_t, static_cast<double>(x)) >> 52) - 1022 : 0;
}
KVX_HD constexpr double power_of_two(int n) { return __builtin_bit_cast(double, static_cast<std::uint64_t>(1023 + n) << 52); }
static_assert(exponent_of(1) == 1 && exponent_of(0.75f) == 0 && exponent_of(0x1p-149f) == -148 && power_of_two(-3) == .125);

/// A component of a query as the page dots want it: times a power of two, 16 significant bits; what is below 2^-40 counts as 0.
KVX_HD constexpr float page_query_component(float q, double power) {
  const auto x = static_cast<float>(static_cast<double>(q) * power);
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return size_of(x) > 0x1p-40f ? __builtin_bit_cast(float, (bits + 0x7fu + (bits >> 8 & 1u)) & ~0xffu) : 0.0f;
}
static_assert(page_query_component(1 + 0x1p-16f, 0.25) == 0.25f && page_query_component(-1 - 0x1p-15f, 1) == -1 - 0x1p-15f);

/// Pages that stand for a zone when a scale is chosen: 2,048 tokens, at least four pages, evenly apart.
KVX_HD constexpr std::int64_t sampled_pages(int page_tokens) { return page_tokens <= 512 ? 2048 / page_tokens : 4; }
KVX_HD constexpr std::int64_t sampled_page(std::int64_t first, std::int64_t pages, std::int64_t count, std::int64_t s) {
  return first + s * pages / count;
}

/// Of so many sampled keys in ascending order, the place (from 1) of the median, and of the first behind the lowest twentieth.
KVX_HD constexpr std::int64_t median_place(std::int64_t keys) { return (keys + 1) / 2; }
KVX_HD constexpr std::int64_t twentieth_place(std::int64_t keys) { return keys / 20 + 1; }

/// The norm byte that counts as 1: the largest of the sampled keys, at most 8 times (24 steps) their median.
KVX_HD constexpr std::uint8_t reference_byte(int median, int largest) {
  return static_cast<std::uint8_t>(largest < median + 24 ? largest : median + 24);
}

/// Score to byte: see score_byte.
struct byte_scale {
  std::int16_t low = -16384;
  std::int16_t gain = 256;
};

/// Words of a byte of the first look at sampled keys.
inline constexpr int coarse_words = 128;
inline constexpr byte_scale coarse_scale = {-16384, 32768 / coarse_words};

/// A scale that spreads bytes over what sampled keys score: from the lowest twentieth to an eighth above the largest, both bytes of
/// coarse_scale.
KVX_HD constexpr byte_scale byte_scale_of(int lowest, int largest) {
  const int width = (largest + 2 - lowest) * coarse_words * 9 / 8;
  return {static_cast<std::int16_t>((lowest - 1) * coarse_words - 16384),
          static_cast<std::int16_t>(255 * 32768 / (width < 256 ? 256 : width))};
}

/// One head before the common word is chosen: what one unit of its sums and of its page dots is in nats, its log-sum-exp.
struct head_units {
  double sum;
  double page;
  double lse;
  std::int64_t entries;  ///< sum of all table entries: 16 times the mean sum
  bool used;
};

/// A coordinate of a unit vector in units of its sign, on average.
inline double sign_worth(int dim) { return std::sqrt(2 / (std::numbers::pi * dim)); }

/// kappa       sign_worth
/// norm        that of the reference byte; 1 without norms
/// c           sign_table_unit
KVX_HD constexpr double sum_unit(float scale, double kappa, double norm, double c) {
  return c > 0 ? 2 * static_cast<double>(scale) * kappa * norm / c : 0;
}

/// What page and head add to a score, in nats, the best head counting.
///
/// shapes      dots (heads); a head whose dot is not finite is left out
/// returns     whether there is such a head
KVX_HD constexpr bool page_top(const head_units* units, const float* dots, int heads, double& top) {
  bool found = false;
  for (int g = 0; g < heads; ++g) {
    if (!units[g].used || !is_finite(dots[g])) continue;
    const double value = units[g].page * static_cast<double>(dots[g]) - units[g].lse;  // the product is exact
    top = found && !(top < value) ? top : value;
    found = true;
  }
  return found;
}

/// One word in nats: no head's ratio above 1/2, so that the largest sum still has a byte of its own, and pages within a quarter of the
/// range.
KVX_HD constexpr double common_word(double largest_unit, double spread, int steps) {
  const double sums = largest_unit / (steps * 0.5), pages = spread / 8192;
  const double word = sums < pages ? pages : sums;
  return word > 0 ? word : 1;
}

/// One head in words: see head_score; offset and page dots are added in double.
struct head_words {
  std::int16_t ratio = 0;
  std::int16_t centre = 0;
  double page_scale = 0;
  double offset = 0;
};

/// base        mean of page_top over sampled pages, from which scores count
/// steps, middle       of sums: head_score
KVX_HD constexpr head_words words_of(const head_units& u, double word, double base, int steps, int middle) {
  head_words w;
  const std::int64_t ratio = u.used ? static_cast<std::int64_t>(32768 * (u.sum / word) / steps) : 0;
  w.ratio = static_cast<std::int16_t>(ratio < 16384 ? ratio : 16384);
  // (middle - mean sum) steps ratio / 2^15, the mean sum being entries / 16
  const std::int64_t centre = (16 * middle - u.entries) * steps * w.ratio;
  w.centre = saturated(static_cast<std::int32_t>((centre + (1 << 18)) >> 19));
  w.page_scale = u.used ? with_float_precision(u.page / word) : 0;
  w.offset = u.used ? (-u.lse - base) / word : -1e9;
  return w;
}

}  // namespace kvx
