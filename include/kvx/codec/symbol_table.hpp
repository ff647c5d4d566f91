#pragma once
// An alphabet of sixteen symbols with its probabilities, and how a rANS state takes in and gives back one of them.

#include <kvx/backend/simd/rans_table.hpp>
#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// Probabilities of an alphabet in units of 2^-12: they add up to 4096; a symbol of 0 does not occur.
struct symbol_frequencies {
  std::uint16_t of[alphabet_size] = {};
  friend constexpr bool operator==(const symbol_frequencies&, const symbol_frequencies&) = default;
};

/// What the values of a component look like: a symbol s with raw bits r is (s << raw_bits) + r + offset; escape is the number of the
/// symbol that stands for all other values, or 255.
struct symbol_range {
  std::int16_t offset = -middle_symbol;
  std::uint8_t escape = alphabet_size - 1;
  std::uint8_t raw_bits = 0;
};

/// Raw bits of a value at most: the largest symbol still fits 16 bits.
inline constexpr int most_raw_bits = 11;

/// The look-up table of an alphabet.
///
/// what        sixteen buckets of 256 slots; each belongs to at most two symbols, so that a slot is resolved by one look-up and one
///             comparison, whatever the probabilities
/// exactness   integers: the same table everywhere. Of the buckets that are not full, the lowest is filled by the lowest symbol that has
///             slots to give away
/// errors      frequencies that do not add up to 4096 have no table: see sums_to_one
/// source      Walker 1977, Vose 1991 (the alias method); Giesen 2014 (rANS over it)
KVX_HD constexpr symbol_lookup make_lookup(const symbol_frequencies& f, const symbol_range& range) {
  symbol_lookup t;
  int left[alphabet_size] = {}, divider[alphabet_size] = {}, alias[alphabet_size] = {}, place[alphabet_size] = {};
  bool done[alphabet_size] = {};
  for (int s = 0; s < alphabet_size; ++s) left[s] = f.of[s];
  for (int round = 0; round < alphabet_size; ++round) {
    int small = -1, large = -1;
    for (int s = alphabet_size; s-- > 0;) {
      if (done[s]) continue;
      if (left[s] < 256) small = s;
      if (left[s] >= 256) large = s;
    }
    const int s = small >= 0 ? small : large;
    done[s] = true;
    divider[s] = left[s];
    alias[s] = s;
    place[s] = left[s] < 256 ? left[s] : 256;
    if (small >= 0 && large >= 0) {
      alias[s] = large;
      left[large] -= 256 - left[s];
    }
  }
  for (int b = 0; b < alphabet_size; ++b) {
    int shift = 0;
    if (alias[b] == b) {
      divider[b] = 0;  // the bucket's own symbol, taken as its alias: 256 fits no byte
    } else {
      shift = place[alias[b]] - divider[b];
      place[alias[b]] += 256 - divider[b];
    }
    const auto low = static_cast<std::uint32_t>(shift) & 255u, high = static_cast<std::uint32_t>(shift) >> 8 & 255u;
    t.buckets[b] = static_cast<std::uint32_t>(divider[b]) | static_cast<std::uint32_t>(alias[b]) << 8 | low << 16 | high << 24;
    t.frequencies[b] = f.of[b];
    t.dividers[b] = static_cast<std::uint8_t>(divider[b]);
    t.aliases[b] = static_cast<std::uint8_t>(alias[b]);
    t.shifts_low[b] = static_cast<std::uint8_t>(low);
    t.shifts_high[b] = static_cast<std::uint8_t>(high);
    t.frequencies_low[b] = static_cast<std::uint8_t>(f.of[b] & 255);
    t.frequencies_high[b] = static_cast<std::uint8_t>(f.of[b] >> 8);
  }
  t.offset = range.offset;
  t.escape = range.escape;
  t.raw_bits = range.raw_bits;
  return t;
}

KVX_HD constexpr bool sums_to_one(const symbol_frequencies& f) {
  int sum = 0;
  for (const int x : f.of) sum += x;
  return sum == 1 << rans_bits;
}

/// Weights as probabilities.
///
/// what        rounded to nearest, but at least 1 where a symbol has any weight; what rounding leaves over or lacks goes to the most likely
/// shapes      weights below 2^48, at least one above 0, or all symbols become equally likely
/// exactness   integers: the same everywhere
KVX_HD constexpr symbol_frequencies normalised(const std::uint64_t (&weights)[alphabet_size]) {
  symbol_frequencies f;
  std::uint64_t sum = 0;
  for (const std::uint64_t w : weights) sum += w;
  if (sum == 0) {
    for (auto& x : f.of) x = (1 << rans_bits) / alphabet_size;
    return f;
  }
  int total = 0, most = 0;
  for (int s = 0; s < alphabet_size; ++s) {
    std::uint64_t x = ((weights[s] << rans_bits) + sum / 2) / sum;
    if (x == 0 && weights[s] > 0) x = 1;
    f.of[s] = static_cast<std::uint16_t>(x);
    total += f.of[s];
    if (f.of[s] > f.of[most]) most = s;
  }
  f.of[most] = static_cast<std::uint16_t>(f.of[most] + (1 << rans_bits) - total);
  return f;
}

/// Gives back the symbol that state x holds, and removes it: x is then below 2^16 where a word is due.
KVX_HD constexpr int take_symbol(const symbol_lookup& t, std::uint32_t& x) {
  const std::uint32_t slot = x & ((1u << rans_bits) - 1), low = slot & 255;
  const std::uint32_t bucket = t.buckets[slot >> 8];
  const bool aliased = low >= (bucket & 255);
  const std::uint32_t s = aliased ? bucket >> 8 & 15 : slot >> 8;
  const std::uint32_t shift = aliased ? static_cast<std::uint32_t>(static_cast<std::int32_t>(bucket) >> 16) : 0;
  x = t.frequencies[s] * (x >> rans_bits) + low + shift;
  return static_cast<int>(s);
}

/// The slots of every symbol one after the other: what an encoder looks up. Made from the look-up table, so that both agree.
///
/// reciprocals floor(2^44 / frequency) + 1: x / f is x times it, over 2^44, exactly and within 64 bits, for x below 2^20 f
struct symbol_slots {
  std::uint64_t reciprocals[alphabet_size] = {};
  std::uint16_t starts[alphabet_size] = {};
  std::uint16_t of[1 << rans_bits] = {};
};

KVX_HD constexpr void make_slots(const symbol_lookup& t, symbol_slots& slots) {
  std::uint32_t start = 0;
  for (int s = 0; s < alphabet_size; ++s) {
    slots.starts[s] = static_cast<std::uint16_t>(start);
    slots.reciprocals[s] = t.frequencies[s] > 0 ? (std::uint64_t{1} << 44) / t.frequencies[s] + 1 : 0;
    start += t.frequencies[s];
  }
  for (std::uint32_t slot = 0; slot < 1u << rans_bits; ++slot) {
    std::uint32_t x = 1u << rans_bits | slot;  // the state that f + place of its symbol comes from
    const int s = take_symbol(t, x);
    slots.of[slots.starts[s] + x - t.frequencies[s]] = static_cast<std::uint16_t>(slot);
  }
}

/// Whether a state must give away a word before it takes in symbol s.
KVX_HD constexpr bool gives_word(const symbol_lookup& t, int s, std::uint32_t x) { return x >> (32 - rans_bits) >= t.frequencies[s]; }

/// Takes in symbol s, whose frequency is not 0, into a state that need not give away a word.
KVX_HD constexpr std::uint32_t put_symbol(const symbol_lookup& t, const symbol_slots& slots, int s, std::uint32_t x) {
  const auto quotient = static_cast<std::uint32_t>(x * slots.reciprocals[s] >> 44);
  return (quotient << rans_bits) + slots.of[slots.starts[s] + (x - quotient * t.frequencies[s])];
}

/// How a value is told: its symbol, its raw bits, and whether it needs the bytes of an escape.
struct symbol_of_value {
  int symbol = 0;
  std::uint32_t raw = 0;
  std::int32_t distance = 0;  ///< of an escaped symbol from the middle
  bool escaped = false;
};
KVX_HD constexpr symbol_of_value find_symbol(const symbol_lookup& t, std::int32_t value) {
  const std::int32_t from_lowest = value - t.offset;
  symbol_of_value r;
  r.symbol = from_lowest >> t.raw_bits;
  r.raw = static_cast<std::uint32_t>(from_lowest) & ((1u << t.raw_bits) - 1);
  if (r.symbol < 0 || r.symbol >= alphabet_size || r.symbol == t.escape || t.frequencies[r.symbol] == 0) {
    r.distance = r.symbol - middle_symbol;
    r.symbol = t.escape;
    r.escaped = true;
  }
  return r;
}

/// The code of an escape, its lowest bit the sign: one byte below 255, else 255 and two bytes.
KVX_HD constexpr std::uint32_t escape_code(std::int32_t distance) {
  return distance < 0 ? 2 * static_cast<std::uint32_t>(-(distance + 1)) + 1 : 2 * static_cast<std::uint32_t>(distance);
}

static_assert([] {
  constexpr std::uint64_t weights[alphabet_size] = {1, 0, 0, 5, 0, 700, 30000, 90000, 30001, 700, 0, 4, 0, 0, 0, 1};
  const symbol_frequencies f = normalised(weights);
  const symbol_lookup t = make_lookup(f, {});
  bool right = sums_to_one(f);
  std::uint32_t counts[alphabet_size] = {};
  for (std::uint32_t slot = 0; slot < 4096; ++slot) {
    std::uint32_t x = 1u << rans_bits | slot;
    const int s = take_symbol(t, x);
    right = right && x >= t.frequencies[s] && x < 2 * t.frequencies[s];
    ++counts[s];
  }
  for (int s = 0; s < alphabet_size; ++s) right = right && counts[s] == f.of[s];
  return right && find_symbol(t, 8).escaped && find_symbol(t, -1).symbol == 6 && escape_code(-1) == 1 && escape_code(3) == 6;
}());

}  // namespace kvx
