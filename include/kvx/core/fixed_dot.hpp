#pragma once
// Inner products of floats whose bits depend on neither compiler, instruction set nor contraction.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>

#include <cstdint>

namespace kvx {

/// Vectors handed to fixed_dot are zero up to a multiple of this.
inline constexpr int fixed_dot_lanes = 8;

/// a . b.
///
/// shapes      a, b (D), zero up to a multiple of fixed_dot_lanes
/// exactness   products of two floats are exact in double; lane j sums components j, j + 8, ... ascending, then lanes (0 + 4) + (2 + 6) and
///             (1 + 5) + (3 + 7): vectors of any width can follow it to the bit
KVX_HD constexpr double fixed_dot(const float* a, const float* b, int dim) {
  double s[fixed_dot_lanes] = {};
  for (int d = 0; d < dim; d += fixed_dot_lanes) {
    for (int j = 0; j < fixed_dot_lanes; ++j) s[j] += static_cast<double>(a[d + j]) * static_cast<double>(b[d + j]);
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
static_assert([] {
  constexpr float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 1, 1, 1, 1, -1, -1, 0};
  return fixed_dot(a, b, 6) == 1 + 2 + 3 + 4 + 5 - 6 - 7;
}());

}  // namespace kvx
