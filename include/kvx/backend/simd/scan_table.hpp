#pragma once
// The kernels that score every key of the retrieval zone from its signs, and collect the best.

#include <kvx/core/element.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx::simd {

/// Tokens that the scan kernels take at once.
inline constexpr int scan_block = 64;

/// Heads that share one pass over the signs.
inline constexpr int scan_heads = 4;

/// Plane bytes up to which the sums of sign tables fit 8 bits.
inline constexpr int narrow_planes = 32;

/// What sums start from, so that a signed word holds them: 8-bit sums are at most 255, others at most 144 tables of 63.
inline constexpr int narrow_middle = 128, wide_middle = 4608;

/// Steps of a word for one unit of a sum.
inline constexpr int narrow_steps = 256, wide_steps = 4;

/// 2^(-i / 8) times 2^16, rounded to nearest, the first one below 2^16; and their bytes and the powers 2^(7 - i), to be looked up.
inline constexpr std::uint16_t eighth_powers[8] = {0xffff, 0xeac1, 0xd745, 0xc567, 0xb505, 0xa5ff, 0x9838, 0x8b96};
struct eighth_bytes {
  alignas(16) std::uint8_t low[16] = {};
  alignas(16) std::uint8_t high[16] = {};
  alignas(16) std::uint8_t powers[16] = {};
};
inline constexpr eighth_bytes eighths = [] {
  eighth_bytes r;
  for (int i = 0; i < 8; ++i) {
    r.low[i] = static_cast<std::uint8_t>(eighth_powers[i] & 255);
    r.high[i] = static_cast<std::uint8_t>(eighth_powers[i] >> 8);
    r.powers[i] = static_cast<std::uint8_t>(128 >> i);
  }
  return r;
}();

/// A query group's tables over the signs of keys, and how their sums become one byte; bucket_score.hpp holds the arithmetic.
///
/// tables      for every scan_heads heads [planes][heads of these][2][16]: what the low and the high four bits of a plane byte add
/// ratios      (heads) units of this head's sums in the common unit, times 2^15
/// centres     (heads) what is added so that a sum without direction is 0
/// reference   norm byte that counts as 1
/// low, gain   score to byte
struct sign_scan {
  const std::uint8_t* tables = nullptr;
  const std::int16_t* ratios = nullptr;
  const std::int16_t* centres = nullptr;
  int heads = 0;
  int planes = 0;
  std::uint8_t reference = 0;
  std::int16_t low = 0;
  std::int16_t gain = 0;
};

/// Weights of buckets.
///
/// weights     subspaces of 8: [planes][256]; of 4: [planes][2][16], the low four bits first
/// bits        the same for subspaces of 8 as sets: [planes][3][2][16], bit i of the weight of bucket b is bit (b / 16 % 8) of the byte
///             [i][b / 128][b % 16]
/// shift       votes are divided by 2^shift
struct vote_scan {
  const std::uint8_t* weights = nullptr;
  const std::uint8_t* bits = nullptr;
  int subspace = 8;
  int planes = 0;
  int shift = 0;
};

/// Columns of one page of one head; norms null: all norms count as the reference. Keys of norm byte 0 get score 0. `pitch` bytes from one
/// plane byte of a key to its next; tokens a multiple of scan_block.
struct scan_page {
  const std::uint8_t* signs = nullptr;
  const std::uint8_t* norms = nullptr;
  std::int64_t pitch = 0;
  int tokens = 0;
  const std::uint8_t* next = nullptr;  ///< signs of a page that a later call will read: asked for a line at a time, or null
};

/// Kernels of the scan. Every one gives the same bits in every instruction set.
struct scan_table {
  /// scores[t] = the byte of bucket_score.hpp; offsets (heads): what the page and the head add.
  void (*sign_scores)(const sign_scan& scan, const scan_page& page, const std::int16_t* offsets, std::uint8_t* scores);
  /// scores[t] = 1 + votes / 2^shift.
  void (*vote_scores)(const vote_scan& scan, const scan_page& page, std::uint8_t* scores);
  /// sums[g] = q_g . mean; q (heads, pitch) of 16 significant bits, 0 from dim up to a multiple of 16. Products are exact; term d is
  /// added to lane d % 16, ascending, and lanes j and j + 8, then j + 4, j + 2, j + 1 are added.
  void (*page_dots)(const float* q, std::int64_t pitch, int heads, const bf16* mean, int dim, float* sums);
  /// words[g] = word_of(dots[g] scales[g] + offsets[g]) of bucket_score.hpp; the products are exact.
  void (*page_words)(const float* dots, const double* scales, const double* offsets, int heads, std::int16_t* words);
  /// How many of n scores are above `level`.
  std::int64_t (*count_above)(const std::uint8_t* scores, std::int64_t n, int level);
  /// Writes first + t for every score above `level` and for the first `ties` scores equal to it, ascending; returns how many, and
  /// takes those it used from ties.
  std::int64_t (*select)(const std::uint8_t* scores, std::int64_t n, int level, std::int64_t& ties, std::int32_t first, std::int32_t* out);
};

}  // namespace kvx::simd
