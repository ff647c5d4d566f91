#pragma once
// Rows made from token ids: a sequence is a list of numbers, and every component of its K and V rows follows from them.

#include <kvx/core/element.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace kvx::test {

using token = std::uint64_t;

/// Two values of different ids, layers, heads or components are as good as never equal.
inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

enum class part : std::uint64_t { key = 0x243f6a8885a308d3u, value = 0x13198a2e03707344u, query = 0xa4093822299f31d0u };

/// Component c of one row of a token, in [-1, 1).
inline float component(token id, part which, int layer, int head, int c) {
  const auto place = static_cast<std::uint64_t>(layer) << 40 | static_cast<std::uint64_t>(head) << 20 | static_cast<std::uint64_t>(c);
  const std::uint64_t bits = mix(mix(id + static_cast<std::uint64_t>(which)) + place);
  return static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
}

/// The rows of a batch as `append` and `attend` take them.   result (N, heads, dim)
template <element T>
std::vector<T> rows_of(std::span<const token> ids, part which, int layer, int heads, int dim) {
  std::vector<T> rows;
  rows.reserve(ids.size() * static_cast<std::size_t>(heads * dim));
  for (const token id : ids) {
    for (int h = 0; h < heads; ++h) {
      for (int c = 0; c < dim; ++c) rows.push_back(round_to<T>(component(id, which, layer, h, c)));
    }
  }
  return rows;
}

}  // namespace kvx::test
