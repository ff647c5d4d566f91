#pragma once
// Shape of a page and of the rows in it, and what they take in memory.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <bit>
#include <cstdint>

namespace kvx {

/// Rows per page and components per row.
///
/// tokens      P, a power of two up to 65,536; 64 is the block of the sign plane
/// key_dim     D, 1..576
/// value_dim   Dv, 1..576; may differ from key_dim
struct page_shape {
  int tokens = 64;
  int key_dim = 128;
  int value_dim = 128;

  friend constexpr bool operator==(const page_shape&, const page_shape&) = default;
};

/// A shape that a cache accepts.
KVX_HD constexpr bool is_valid(page_shape s) {
  return s.tokens >= 1 && s.tokens <= 65536 && (s.tokens & (s.tokens - 1)) == 0 && s.key_dim >= 1 && s.key_dim <= 576 && s.value_dim >= 1 &&
         s.value_dim <= 576;
}

/// log2 of the tokens of a page, a power of two: a token t lies in page t >> page_shift_of(P).
constexpr int page_shift_of(int tokens) { return std::countr_zero(static_cast<unsigned>(tokens)); }
static_assert(page_shift_of(1) == 0 && page_shift_of(64) == 6);

/// Where the parts of a row lie, in elements: K first, then V, each padded to 16 bytes so that vector loads may be aligned.
struct row_pitch {
  std::int64_t value = 0;  ///< from the first component of K to the first of V
  std::int64_t row = 0;    ///< from one row to the next

  friend constexpr bool operator==(const row_pitch&, const row_pitch&) = default;
};

template <class E>
KVX_HD constexpr row_pitch pitch_of(page_shape s) {
  constexpr std::int64_t unit = 16 / static_cast<std::int64_t>(sizeof(E));
  const std::int64_t value = round_up(s.key_dim, unit);
  return {value, value + round_up(s.value_dim, unit)};
}
static_assert(pitch_of<std::uint16_t>({64, 46, 46}) == row_pitch{48, 96} && pitch_of<float>({64, 128, 1}) == row_pitch{128, 132});

/// Bytes that the rows of `pages` pages of one layer take, rounded up to 64, or -1 where they cannot be counted in 63 bits.
template <class E>
constexpr std::int64_t row_bytes(page_shape s, std::int64_t pages, std::int64_t heads) {
  const std::int64_t bytes =
      checked_product(checked_product(pages, heads), s.tokens * pitch_of<E>(s).row * static_cast<std::int64_t>(sizeof(E)));
  return bytes < 0 || bytes > (std::int64_t{1} << 62) ? -1 : round_up(bytes, 64);
}

}  // namespace kvx
