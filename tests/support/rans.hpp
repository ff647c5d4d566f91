#pragma once
// The decoder of a rANS stream as its format says it, one value after the other, and streams to try it with.

#include <kvx/codec/rans.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

/// Values (components, tokens), dense; nothing where the stream is not sound.
inline std::optional<std::vector<std::int16_t>> plain_rans_decode(const symbol_model& model, std::int32_t tokens,
                                                                  std::span<const std::byte> stream) {
  std::size_t at = 0;
  const auto number = [&](std::size_t bytes) -> std::optional<std::uint32_t> {
    if (stream.size() - at < bytes) return {};
    std::uint32_t x = 0;
    for (std::size_t i = 0; i < bytes; ++i) x |= std::to_integer<std::uint32_t>(stream[at + i]) << 8 * i;
    at += bytes;
    return x;
  };
  const auto words = number(4), escapes = number(4);
  if (!words || !escapes) return {};
  std::vector<std::uint32_t> states;
  for (int lane = 0; lane < rans_lanes_of(model.components, tokens); ++lane) {
    const auto x = number(4);
    if (!x || *x < rans_least) return {};
    states.push_back(*x);
  }
  if (stream.size() - at != std::size_t{*words} * 2 + *escapes) return {};
  std::size_t escape_at = at + std::size_t{*words} * 2;
  const std::size_t words_end = escape_at;
  bool sound = true;
  const auto take_word = [&](std::uint32_t& x) {
    if (x >= rans_least) return;
    if (at == words_end) {
      sound = false;
      return;
    }
    x = x << 16 | *number(2);
  };
  std::vector<std::int16_t> values;
  for (std::int64_t c = 0; c < model.components && sound; ++c) {
    const symbol_lookup& table = model.tables[model.table_of[c]];
    for (std::int32_t t = 0; t < tokens && sound; t += rans_lanes) {
      const int active = std::min(rans_lanes, tokens - t);
      std::vector<std::int64_t> symbol, raw(static_cast<std::size_t>(active), 0);
      for (int lane = 0; lane < active; ++lane) symbol.push_back(take_symbol(table, states[static_cast<std::size_t>(lane)]));
      for (int lane = 0; lane < active; ++lane) take_word(states[static_cast<std::size_t>(lane)]);
      if (table.raw_bits > 0) {
        for (int lane = 0; lane < active; ++lane) {
          auto& x = states[static_cast<std::size_t>(lane)];
          raw[static_cast<std::size_t>(lane)] = x % (1u << table.raw_bits);
          x >>= table.raw_bits;
        }
        for (int lane = 0; lane < active; ++lane) take_word(states[static_cast<std::size_t>(lane)]);
      }
      for (std::size_t lane = 0; lane < symbol.size(); ++lane) {
        if (symbol[lane] == table.escape) {
          const auto byte = [&] {
            if (escape_at == stream.size()) sound = false;
            return sound ? std::to_integer<std::int64_t>(stream[escape_at++]) : 0;
          };
          std::int64_t code = byte();
          if (code == 255) {
            code = byte();
            code += 256 * byte();
          }
          symbol[lane] = middle_symbol + (code % 2 != 0 ? -(code / 2) - 1 : code / 2);
        }
        const std::int64_t value = symbol[lane] * (1 << table.raw_bits) + raw[lane] + table.offset;
        if (value > 32767 || value < -32767) sound = false;
        values.push_back(static_cast<std::int16_t>(value));
      }
    }
  }
  for (const std::uint32_t x : states) sound = sound && x == rans_least;
  if (!sound || at != words_end || escape_at != stream.size()) return {};
  return values;
}

/// Bits of the values by the probabilities of their alphabets; a raw bit and a bit of an escape cost one.
inline double cross_entropy(const symbol_model& model, const component_matrix<const std::int16_t>& values) {
  double bits = 0;
  for (std::int64_t c = 0; c < values.components; ++c) {
    const symbol_lookup& table = model.tables[model.table_of[c]];
    for (std::int32_t t = 0; t < values.tokens; ++t) {
      const symbol_of_value v = find_symbol(table, values.data[c * values.pitch + t]);
      bits += 12 - std::log2(static_cast<double>(table.frequencies[v.symbol])) + table.raw_bits;
      if (v.escaped) bits += escape_code(v.distance) < 255 ? 8 : 24;
    }
  }
  return bits;
}

}  // namespace kvx::test
