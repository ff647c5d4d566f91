#pragma once
// Tokens of a tree by their places on a few random lines: the order in which Prioritized DCI comes to the points of a cell.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/random.hpp>

#include <cstdint>

namespace kvx {

// A composite index is m simple ones, a simple one a random line. A key k of a block whose sphere has radius c stands at
//   ([k, h] . u) / c = (fixed_dot(k, u) + h u_D) / c        h its height on the sphere, u of random signs; one rounding to float
// of each line, a query q at (fixed_dot(q, u) / |q|): both on the unit sphere, where Euclidean order is the order of inner products. Of a
// composite index the priority of a token is the largest distance over its lines, of a group of heads that of the nearest head.

/// Most lines of all composite indices together.
inline constexpr int most_lines = 64;

/// Component d of line i; component D meets the height.
KVX_HD constexpr float line_component(std::uint64_t seed, int i, int d) {
  return random_bits(seed + 0x6c696e65 + static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(d)) >> 63 != 0 ? -1.0f : 1.0f;
}

/// Where a key stands on a line.   dot: fixed_dot of the key and components 0..D-1 of the line; last: its component D
KVX_HD constexpr float place_of_key(double dot, float height, float last, float radius) {
  const double sum = dot + static_cast<double>(height) * static_cast<double>(last);
  return radius > 0 ? static_cast<float>(sum / static_cast<double>(radius)) : 0.0f;
}
static_assert(place_of_key(3, 4, -1, 2) == -.5f && place_of_key(0, 0, 1, 0) == 0);

/// Where a query stands on a line; the query 0 in the middle.   dot, square: fixed_dot of the query with the line, and with itself;
/// square_root: as in dci_links.hpp
template <class SquareRoot>
KVX_HD constexpr float place_of_query(double dot, double square, const SquareRoot& square_root) {
  return square > 0 ? static_cast<float>(dot / square_root(square)) : 0.0f;
}

/// The priority of a token in one composite index: the smaller, the sooner. A distance of NaN counts as none.
///
/// shapes      places (m); asked (G, pitch): those of the group's queries, from this index's first line on
KVX_HD constexpr float priority_of(const float* places, int m, const float* asked, std::int64_t pitch, int group) {
  float nearest = infinity;
  for (int g = 0; g < group; ++g) {
    float most = 0;
    for (int j = 0; j < m; ++j) {
      const float x = places[j] - asked[g * pitch + j], distance = x < 0 ? -x : x;
      most = distance > most ? distance : most;
    }
    nearest = most < nearest ? most : nearest;
  }
  return nearest;
}
static_assert([] {
  const float places[2] = {1, 2}, asked[4] = {1, 4, 2, 2.5f};
  return priority_of(places, 2, asked, 2, 1) == 2 && priority_of(places, 2, asked, 2, 2) == 1;
}());

}  // namespace kvx
