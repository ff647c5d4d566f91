#pragma once
// The principal direction of a set of keys, in a fixed order: the scalar rules of packing by bisection.

#include <kvx/core/annotate.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/random.hpp>

#include <cstdint>

namespace kvx {

// Keys x_t of a node, asked rows z_t = M x_t with the query metric M (z_t = x_t without one). From w = random signs, power_steps times:
//   y_t = x_t . w                 fixed_dot
//   c_t = y_t - mean of y         the sum ascending in t, one division; rounded to float
//   w   = sum_t z_t c_t           ascending in t; then scaled by a power of two so that the largest component lies in [1, 2), rounded
// which is the power method on M Cov(x): its eigenvector w has w . x = u . L^T x, with M = L L^T and u the principal direction of L^T x.
// A node is cut at the rank of y_t, equal ones by position: the lower half gets the fewer pages.

/// Steps of the power method.
inline constexpr int power_steps = 8;

/// Component d of the direction that a node starts from: a random sign.
KVX_HD constexpr float first_direction(std::uint64_t seed, int d) {
  return (random_bits(seed, static_cast<std::uint64_t>(d)) >> 63) != 0 ? -1.0f : 1.0f;
}

/// The power of two that brings a positive, normal number into [1, 2); 1 for zero and what is not finite.
KVX_HD constexpr double power_to_one(double largest) {
  const auto exponent = static_cast<int>(__builtin_bit_cast(std::uint64_t, largest) >> 52 & 0x7ff);
  if (exponent == 0 || exponent == 0x7ff) return 1;
  const int inverse = 2046 - exponent;
  return __builtin_bit_cast(double, static_cast<std::uint64_t>(inverse < 1 ? 1 : inverse) << 52);
}
static_assert(power_to_one(1) == 1 && power_to_one(3) == .5 && power_to_one(0x1p-40) == 0x1p40 && power_to_one(0) == 1);

/// w = sums, scaled.
KVX_HD constexpr void scale_direction(const double* sums, int dim, float* w) {
  double largest = 0;
  for (int d = 0; d < dim; ++d) {
    const double x = sums[d] < 0 ? -sums[d] : sums[d];
    if (x > largest) largest = x;
  }
  const double factor = power_to_one(largest);
  for (int d = 0; d < dim; ++d) w[d] = static_cast<float>(sums[d] * factor);
}

/// Pages of the lower half of a node.
KVX_HD constexpr int lower_pages(int pages) { return pages / 2; }

/// Pages [first, first + count) of a packing.
struct page_range {
  int first = 0;
  int count = 0;
};

/// Node k of 2^depth of a packing into so many pages, left to right: one of fewer than two pages is not cut.
KVX_HD constexpr page_range node_of(int pages, int depth, int k) {
  page_range node{0, pages};
  for (int bit = depth - 1; bit >= 0; --bit) {
    const int lower = lower_pages(node.count);
    node = (k >> bit & 1) != 0 ? page_range{node.first + lower, node.count - lower} : page_range{node.first, lower};
  }
  return node;
}
static_assert(node_of(13, 2, 3).first == 9 && node_of(13, 2, 3).count == 4 && node_of(13, 2, 2).first == 6);

}  // namespace kvx
