#pragma once
// The integer arithmetic behind the byte that an index of sign buckets gives to a key, and the cut through a histogram of such bytes.

#include <kvx/core/annotate.hpp>
#include <kvx/core/word_of.hpp>

#include <cstdint>

namespace kvx {

/// Score of keys that are never proposed: those without a norm, and places outside the searched tokens. All others have 1..255.
inline constexpr std::uint8_t no_score = 0;

KVX_HD constexpr std::int16_t saturated(std::int32_t x) { return static_cast<std::int16_t>(x > 32767 ? 32767 : x < -32768 ? -32768 : x); }

/// x y / 2^15, rounded to nearest, halves up.
KVX_HD constexpr std::int16_t scaled(std::int16_t x, std::int16_t y) { return saturated((x * y + 0x4000) >> 15); }

/// The norm of a byte over that of the reference byte, times 2^15: 2^(-i / 8), i the distance of the bytes, 63 at most.
KVX_HD constexpr std::int16_t norm_factor(std::uint8_t reference, std::uint8_t norm) {
  constexpr std::uint64_t first = 0xc567d745eac1ffff, second = 0x8b969838a5ffb505;  // 2^(16 - i / 8), four of 16 bits each
  const int distance = norm > reference ? 0 : reference - norm > 63 ? 63 : reference - norm;
  const std::uint64_t eighths = distance % 8 < 4 ? first : second;
  return static_cast<std::int16_t>((eighths >> 16 * (distance % 4) & 0xffff) >> (1 + distance / 8));
}
static_assert(norm_factor(128, 128) == 32767 && norm_factor(128, 120) == 16383 && norm_factor(200, 1) == 139);

/// Score of a key for one head, in words.
///
/// what        ((sum, scaled by the head's ratio) + centre, scaled by the key's norm) + offset; every step saturates
/// units       sum: (S - middle) * steps, S the sum of the key's table entries; factor: norm over the reference times 2^15;
///             offset: page mean and log-sum-exp of the head
KVX_HD constexpr std::int16_t head_score(std::int16_t sum, std::int16_t ratio, std::int16_t centre, std::int16_t factor,
                                         std::int16_t offset) {
  return saturated(scaled(saturated(scaled(sum, ratio) + centre), factor) + offset);
}

/// The byte of the largest of the heads' scores.
KVX_HD constexpr std::uint8_t score_byte(std::int16_t best, std::int16_t low, std::int16_t gain) {
  const std::int16_t x = scaled(saturated(best - low), gain);
  return static_cast<std::uint8_t>(x < 1 ? 1 : x > 255 ? 255 : x);
}
static_assert(score_byte(-32768, 0, 256) == 1 && score_byte(32767, -16384, 256) == 255 && score_byte(128, -128, 256) == 2);

/// Weight of a bucket before which, in the order of a subspace, `before` keys lie: 6, 5, 4, 3, 2, 1 where that is less than 5, 15, 30, 50,
/// 75, 100 % of the window, else 0.
/// source: ParisKV (arXiv 2602.07721) section 4
KVX_HD constexpr int vote_weight(std::int64_t before, std::int64_t window) {
  if (before >= window) return 0;
  const std::int64_t edges[5] = {5, 15, 30, 50, 75};
  int weight = 6;
  for (const std::int64_t edge : edges) weight -= before * 100 >= edge * window ? 1 : 0;
  return weight;
}
static_assert(vote_weight(0, 10) == 6 && vote_weight(5, 100) == 5 && vote_weight(99, 100) == 1 && vote_weight(10, 10) == 0);

/// Votes of so many subspaces are divided by 2 to this, so that they fit a byte beside no_score.
KVX_HD constexpr int vote_shift(int subspaces) {
  int shift = 0;
  while (6 * subspaces >> shift > 254) ++shift;
  return shift;
}

/// |q_j| of a query in units of 2^-24 of the largest one; 0 for the query 0.
KVX_HD constexpr std::int64_t vote_size(double q, double largest) {
  return largest > 0 ? static_cast<std::int64_t>((q < 0 ? -q : q) / largest * 0x1p24) : 0;
}

/// Which keys a search takes: all with a score above `level`, and of those with that score the first `ties`.
struct candidate_cut {
  int level = 255;
  std::int64_t ties = 0;
  std::int64_t count = 0;  ///< keys taken in all
};

/// The cut that takes `wanted` keys of the highest scores, or all that have a score.
///
/// shapes      histogram (256): keys of each score; those of no_score are not looked at
KVX_HD constexpr candidate_cut cut_of(const std::uint32_t* histogram, std::int64_t wanted) {
  candidate_cut cut;
  for (int level = 255; level > no_score && cut.count < wanted; --level) {
    const std::int64_t left = wanted - cut.count;
    cut.level = level;
    cut.ties = histogram[level] < left ? histogram[level] : left;
    cut.count += cut.ties;
  }
  return cut;
}
static_assert([] {
  std::uint32_t histogram[256] = {9, 4, 3};
  const candidate_cut some = cut_of(histogram, 5), all = cut_of(histogram, 100), none = cut_of(histogram, 0);
  return some.level == 1 && some.ties == 2 && some.count == 5 && all.count == 7 && all.ties == 4 && none.count == 0 && none.ties == 0;
}());

}  // namespace kvx
