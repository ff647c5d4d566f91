#pragma once
// An interleaved rANS stream: its format, its size, and the policy that names it.

#include <kvx/codec/component_matrix.hpp>
#include <kvx/codec/symbol_table.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// Entropy coding by static alphabets: the policy of a chain.
///
/// A stream of C components and T tokens, little-endian, at any alignment:
///
///     offset   bytes     what
///     0        4         W: words
///     4        4         E: bytes of escapes
///     8        4 L       states of the lanes, L = min(32, T), 0 where C is 0
///     8 + 4L   2 W       words of 16 bits, in the order in which the decoder takes them in
///     ...      E         escapes, in the order of the decoder
///
/// The decoder goes through the components, and in each through its tokens 32 at a time, token t in lane t % 32. In one such step every
/// lane gives back its symbol; then the lanes below 2^16, ascending, take in a word each; where the alphabet has raw bits every lane gives
/// back those, and lanes below 2^16 take in a word again; then lanes whose symbol is the escape, ascending, read its bytes. A lane ends
/// at 2^16, all words and escapes are used, or the stream is corrupt.
/// source      Duda 2013; Giesen 2014, Interleaved entropy coders
struct rans {
  friend constexpr bool operator==(const rans&, const rans&) = default;
};

/// Values of components under static alphabets: component c has tables[table_of[c]].
struct symbol_model {
  const symbol_lookup* tables = nullptr;
  const std::uint16_t* table_of = nullptr;
  std::int64_t components = 0;
};

/// Bytes before the states.
inline constexpr std::int64_t rans_header_bytes = 8;

/// Lanes whose states a stream holds.
KVX_HD constexpr std::int32_t rans_lanes_of(std::int64_t components, std::int32_t tokens) {
  return components == 0 ? 0 : tokens < rans_lanes ? tokens : rans_lanes;
}

/// Room for the values of one component.
KVX_HD constexpr std::int64_t symbol_pitch(std::int32_t tokens) { return round_up(tokens, rans_lanes); }

/// Bytes that no stream exceeds: 12 bits and the raw ones a value, three bytes where it escapes, and a word a lane that a state may be
/// longer by.
inline std::int64_t rans_bound(const symbol_model& model, std::int32_t tokens) {
  std::int64_t bits = 0;
  for (std::int64_t c = 0; c < model.components; ++c) bits += rans_bits + model.tables[model.table_of[c]].raw_bits + 24;
  return rans_header_bytes + 6 * rans_lanes_of(model.components, tokens) + ceil_div(bits * tokens, 8);
}

}  // namespace kvx
