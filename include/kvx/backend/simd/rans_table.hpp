#pragma once
// What the kernel that decodes interleaved rANS streams reads and writes.

#include <cstdint>

namespace kvx {

/// Lanes of a stream: token t of every component belongs to lane t % 32, so that a warp, or a few vectors, decode a component at once.
inline constexpr int rans_lanes = 32;

/// Probabilities count in units of 2^-12; a state is at least 2^16 between symbols and takes in words of 16 bits.
inline constexpr int rans_bits = 12;
inline constexpr std::uint32_t rans_least = 1u << 16;

/// Symbols of an alphabet, and the buckets of 256 slots that share out the 2^12 slots of a table.
inline constexpr int alphabet_size = 16;

/// How a slot becomes a symbol, in the forms that scalars, words and byte shuffles look up (codec/symbol_table.hpp makes it).
///
/// buckets     divider | alias << 8 | shift << 16: slot (b, low) of bucket b belongs to symbol b where low < divider, to alias from there
///             on; its place among the slots of the alias is low + shift (signed)
/// offset      a symbol s with raw bits r stands for the value (s << raw_bits) + r + offset
/// escape      the symbol whose value follows in the bytes of escapes; 255: none
struct symbol_lookup {
  alignas(64) std::uint32_t buckets[alphabet_size] = {};
  std::uint32_t frequencies[alphabet_size] = {};
  std::uint8_t dividers[alphabet_size] = {};
  std::uint8_t aliases[alphabet_size] = {};
  std::uint8_t shifts_low[alphabet_size] = {};
  std::uint8_t shifts_high[alphabet_size] = {};
  std::uint8_t frequencies_low[alphabet_size] = {};
  std::uint8_t frequencies_high[alphabet_size] = {};
  std::int16_t offset = 0;
  std::uint8_t escape = 255;
  std::uint8_t raw_bits = 0;
};

/// The symbol of value 0 in an alphabet with an escape.
inline constexpr int middle_symbol = 7;

}  // namespace kvx

namespace kvx::simd {

/// One stream.
///
/// shapes      table_of (components), out (components, pitch), pitch a multiple of 32 and at least tokens; what lies beyond the tokens of a
///             component is overwritten. states (32), [words, words_end) and [escapes, escapes_end) of any alignment
struct rans_job {
  const symbol_lookup* tables = nullptr;
  const std::uint16_t* table_of = nullptr;
  std::int64_t components = 0;
  std::int32_t tokens = 0;
  std::int16_t* out = nullptr;
  std::int64_t pitch = 0;
  std::uint32_t* states = nullptr;
  const std::uint8_t* words = nullptr;
  const std::uint8_t* words_end = nullptr;
  const std::uint8_t* escapes = nullptr;
  const std::uint8_t* escapes_end = nullptr;
};

/// Decodes a stream; true where words and escapes are used up exactly. Reads nothing outside them whatever they hold; states end as the
/// encoder began, which the caller checks. The same bits in every instruction set.
using rans_function = bool (*)(const rans_job& job);

/// For a set of lanes that take in a word, as bits: which of the next words is whose.
struct word_orders {
  alignas(64) std::uint8_t of[256][8] = {};
};
inline constexpr word_orders orders_of_words = [] {
  word_orders r;
  for (int taken = 0; taken < 256; ++taken) {
    int next = 0;
    for (int lane = 0; lane < 8; ++lane) r.of[taken][lane] = static_cast<std::uint8_t>((taken >> lane & 1) != 0 ? next++ : 0);
  }
  return r;
}();

}  // namespace kvx::simd
