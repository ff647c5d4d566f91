#pragma once
// Keys on a sphere, and who is nearest: the scalar rules by which a token of the tree finds its parent.

#include <kvx/core/annotate.hpp>
#include <kvx/core/fixed_dot.hpp>
#include <kvx/core/math.hpp>
#include <kvx/sketch/key_norm.hpp>

#include <cstdint>

namespace kvx {

// A key k with |k| <= c lies on the sphere of radius c as [k, h], h = sqrt(c^2 - |k|^2): there, Euclidean order is the order of inner
// products, and that of the queries [q, 0] is the order of q . k (IceCache's transform, both sides times c).
// The radius of a block is that of the block before it while no key up to the block's end is longer, else headroom times the longest: every
// block has links made with a radius of its own, so that no later key moves an earlier one.
// The parent of a token of level l is, among the tokens of level l + 1 before the end of its block, the one with the largest
//   fixed_dot(k, p) + h_k h_p            all of them floats, the sum in double
// and the lowest position among equals. Without such a token it is the root.

/// Radius over longest key, where a new radius is needed.
inline constexpr double sphere_headroom = 1.25;

/// A key that can be found: no NaN, no infinity, not longer than 2^60.
KVX_HD constexpr bool can_be_found(double square_norm) { return square_norm < static_cast<double>(largest_square_norm); }

/// The coordinate that lifts a key on the sphere. `square_root` of a double, correctly rounded: std::sqrt, or the device's.
template <class SquareRoot>
KVX_HD constexpr float sphere_height(float radius, double square_norm, const SquareRoot& square_root) {
  const double rest = static_cast<double>(radius) * static_cast<double>(radius) - square_norm;
  return rest > 0 ? static_cast<float>(square_root(rest)) : 0.0f;
}

/// The radius of a block whose longest key, or that of an earlier one, has this square norm.
template <class SquareRoot>
KVX_HD constexpr float sphere_radius(float before, double largest_square, const SquareRoot& square_root) {
  if (largest_square <= static_cast<double>(before) * static_cast<double>(before)) return before;
  return static_cast<float>(square_root(largest_square) * sphere_headroom);
}

/// How far apart two float estimates of that sum must be for their order to be right: twice the error of D + 2 terms.
KVX_HD constexpr float nearest_gap(float radius, int dim) { return static_cast<float>(dim + 8) * 0x1p-23f * radius * radius; }

/// The sum that decides.
KVX_HD constexpr double sphere_product(const float* k, float k_height, const float* p, float p_height, int dim) {
  return fixed_dot(k, p, dim) + static_cast<double>(k_height) * static_cast<double>(p_height);
}

}  // namespace kvx
