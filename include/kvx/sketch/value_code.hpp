#pragma once
// The code of a value: what is kept of V beside its row, where each part lies, and what its numbers stand for.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/word_of.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/sketch/codebook.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvx {

// Encoding: v' = v - mean of the page, v~ = rotate(v'), and v~ is coded as a key with one weight is (key_code.hpp):
//   v~_d ~ w s_d level(cell_d), w = |v~|^2 / sum_d level(cell_d) |v~_d|, so that a sum of many values has no bias towards zero.
// A value with NaN or infinity, or with |v'| of 2^60 and more, is coded as never found: cells 0, scale NaN; the mean is that of the others.
// A cache takes the keys of such tokens out of reach too (tiered_writer), so no search proposes them and no page counts them.

/// How values are coded, as a sketch of theirs: relative to the mean of the page, neither balance nor norm byte, one weight a token.
KVX_HD constexpr key_sketch value_sketch(int bits, std::uint64_t seed) {
  return {.subspace = 8,
          .bits = bits > 0 ? bits : 1,
          .weights = key_sketch::weighting::key,
          .centre = true,
          .balance = 0,
          .norms = false,
          .seed = seed};
}

/// Columns of coded values, in this order.
///
/// codes       [P][value_row_bytes] bytes: coordinate d is the field d % (8 / bits) of byte d / (8 / bits), lowest bits first; a field is
///             the cell, with the top bit set where the coordinate is >= 0
/// scales      [P] half: w
/// means       [Dv] bf16: the mean value of the page, before the rotation. The tail reads it too
enum value_column : std::uint8_t { value_codes, value_scales, value_means, value_column_count };

/// Bytes of the code of one token: a multiple of four.
KVX_HD constexpr std::int64_t value_row_bytes(int bits, int dim) { return round_up((std::int64_t{dim} * bits + 7) / 8, 4); }

/// bits = 0: means alone.
KVX_HD constexpr std::int64_t value_block_bytes(int bits, page_shape page, value_column c) {
  switch (c) {
    case value_codes: return value_row_bytes(bits, page.value_dim) * page.tokens;
    case value_scales: return bits > 0 ? std::int64_t{2} * page.tokens : 0;
    case value_means: return std::int64_t{2} * page.value_dim;
    default: return 0;
  }
}

/// The columns of one layer.
using value_columns = std::array<column_array, value_column_count>;

/// Columns of a cache that has tiers: those of the keys' sketch, then those of the values.
inline constexpr int first_value_column = static_cast<int>(sketch_column_count);
inline constexpr int tiered_column_count = first_value_column + static_cast<int>(value_column_count);

constexpr std::array<column, tiered_column_count> tiered_columns(const key_sketch& s, int value_bits, page_shape page) {
  std::array<column, tiered_column_count> result;
  for (int c = 0; c < sketch_column_count; ++c)
    result[static_cast<std::size_t>(c)].block_bytes = block_bytes(s, page, static_cast<sketch_column>(c));
  for (int c = 0; c < value_column_count; ++c)
    result[std::size_t{first_value_column} + static_cast<std::size_t>(c)].block_bytes =
        value_block_bytes(value_bits, page, static_cast<value_column>(c));
  return result;
}
static_assert([] {
  std::int64_t all = 0;
  for (const column& c : tiered_columns({.bits = 4, .weights = key_sketch::weighting::key}, 2, {64, 64, 64})) all += c.pitch();
  return all == 57 * 64;  // bytes a token at D 64, 2-bit values, one weight a key
}());

/// The keys' columns among those of a cache; other columns, or none, may follow.
template <std::size_t N>
constexpr key_columns key_columns_of(const std::array<column_array, N>& all) {
  static_assert(N >= sketch_column_count);
  key_columns result;
  for (std::size_t c = 0; c < result.size(); ++c) result[c] = all[c];
  return result;
}

/// The values' columns among those of a cache; null where it has none.
template <std::size_t N>
constexpr value_columns value_columns_of(const std::array<column_array, N>& all) {
  value_columns result;
  if constexpr (N == tiered_column_count) {
    for (std::size_t c = 0; c < result.size(); ++c) result[c] = all[first_value_column + c];
  }
  return result;
}

/// Columns of one page of one KV head, as numbers.
template <bool Writes>
struct page_values {
  template <class T>
  using pointer = std::conditional_t<Writes, T*, const T*>;

  pointer<std::uint8_t> codes = nullptr;
  pointer<half> scales = nullptr;
  pointer<bf16> means = nullptr;
};

template <bool Writes = false>
inline page_values<Writes> values_of(const value_columns& columns, std::int64_t page, std::int64_t head) {
  const auto at = [&](value_column c) { return columns[c].data == nullptr ? nullptr : columns[c].at(page, head); };
  page_values<Writes> values;
  values.codes = reinterpret_cast<std::uint8_t*>(at(value_codes));
  values.scales = reinterpret_cast<half*>(at(value_scales));
  values.means = reinterpret_cast<bf16*>(at(value_means));
  return values;
}

/// Field of coordinate d of a token's code.
KVX_HD constexpr int value_field(const std::uint8_t* code, int bits, int d) {
  const int each = 8 / bits;
  return code[d / each] >> (d % each * bits) & ((1 << bits) - 1);
}

/// The bits of a byte, `bits` (2 or 4) apart: what a byte of a plane gives to the fields of eight coordinates.
KVX_HD constexpr std::uint32_t spread_bits(std::uint8_t plane, int bits) {
  std::uint32_t x = plane;
  if (bits == 2) {
    x = (x | x << 4) & 0x0f0fu;
    x = (x | x << 2) & 0x3333u;
    return (x | x << 1) & 0x5555u;
  }
  x = (x | x << 12) & 0x000f000fu;
  x = (x | x << 6) & 0x03030303u;
  return (x | x << 3) & 0x11111111u;
}
static_assert(spread_bits(0xb5, 4) == 0x10110101u && spread_bits(0xb5, 2) == 0x4511u);

/// Fields of the eight coordinates whose bits are byte 0 of these planes.   magnitudes (bits - 1), `pitch` bytes apart
KVX_HD constexpr std::uint32_t value_fields(std::uint8_t signs, const std::uint8_t* magnitudes, int pitch, int bits) {
  std::uint32_t fields = spread_bits(signs, bits) << (bits - 1);
  for (int p = 0; p < bits - 1; ++p) fields |= spread_bits(magnitudes[p * pitch], bits) << p;
  return fields;
}

/// The levels of values' codes in whole numbers.
///
/// level       (16) of each field, at most 127 either way; fields that do not exist 0
/// unit        a coordinate is the token's scale times unit times the level of its field
struct value_levels {
  std::array<std::int8_t, 16> level{};
  float unit = 0;
};

template <int Bits>
constexpr value_levels value_levels_of(int dim) {
  constexpr std::size_t cells = std::size_t{1} << (Bits - 1);
  const auto& levels = codebook_for<Bits - 1>(dim).levels;
  value_levels result;
  result.unit = levels[cells - 1] / 127;
  for (std::size_t i = 0; i < cells; ++i) {
    const int level = word_of(static_cast<double>(levels[i] / result.unit));
    result.level[i] = static_cast<std::int8_t>(-level);
    result.level[cells + i] = static_cast<std::int8_t>(level);
  }
  return result;
}
static_assert(value_levels_of<4>(128).level[15] == 127 && value_levels_of<4>(128).level[0] == -6 && value_levels_of<2>(64).level[2] == 38);

static_assert([] {
  constexpr std::uint8_t code[2] = {0xb1, 0x2f};
  return value_field(code, 4, 0) == 1 && value_field(code, 4, 1) == 11 && value_field(code, 2, 2) == 3 && value_field(code, 2, 7) == 0;
}());

}  // namespace kvx
