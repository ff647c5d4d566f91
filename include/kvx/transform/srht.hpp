#pragma once
// The rotation of keys and queries: random signs, then a normalised Walsh-Hadamard transform of any length.

#include <kvx/core/annotate.hpp>
#include <kvx/core/random.hpp>
#include <kvx/transform/hadamard.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Random sign of component j: the sign bit of a float, 0 or 0x80000000, to be XORed into it.
KVX_HD constexpr std::uint32_t sign_of(std::uint64_t seed, std::size_t j) {
  return static_cast<std::uint32_t>(random_bits(seed, j / 64) >> (j % 64) & 1u) << 31;
}

/// x with its sign flipped where `sign` is 0x80000000. An integer operation: the product that x may be is rounded before anything is
/// added to it, whatever the compiler makes of multiplications beside additions.
KVX_HD constexpr float flip(float x, std::uint32_t sign) { return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) ^ sign); }

/// 1 / sqrt(p), p a power of two, rounded once.
KVX_HD constexpr float inverse_root(std::size_t p) {
  float root = 1;
  for (; p >= 4; p /= 4) root *= 0.5f;
  return p == 2 ? root * 0x1.6a09e6p-1f : root;
}
static_assert(inverse_root(1) == 1 && inverse_root(64) == 0.125f && inverse_root(128) == 0x1.6a09e6p-4f);

/// Randomised Hadamard rotation.
///
/// what        x <- diag(H_p1 / sqrt p1, H_p2 / sqrt p2, ...) (s * x), s the signs of the seed, p1 > p2 > ... as in hadamard
/// shapes      x (n), n >= 0
/// exactness   log2(p) + 1 roundings a component, in an order that nothing changes: the same bits everywhere. Products of the result
///             that are added up belong in double, where they are exact and contraction cannot matter
/// cost        n log2(p1) additions, n multiplications, no memory
/// errors      none; NaN and infinity spread over their block
/// source      Ailon and Chazelle 2009; Tropp 2011. Lengths that are no power of two: blocks, each normalised by itself
KVX_HD constexpr void rotate(float* x, std::size_t n, std::uint64_t seed) {
  for (std::size_t j = 0; j < n; ++j) x[j] = flip(x[j], sign_of(seed, j));
  hadamard(x, n);
  while (n > 0) {
    const std::size_t p = power_of_two_below(n);
    const float scale = inverse_root(p);
    for (std::size_t j = 0; j < p; ++j) x[j] *= scale;
    x += p;
    n -= p;
  }
}

/// The inverse of rotate: the transform is its own, the signs come last. Roundings as there.
KVX_HD constexpr void rotate_back(float* x, std::size_t n, std::uint64_t seed) {
  float* at = x;
  hadamard(x, n);
  for (std::size_t left = n; left > 0;) {
    const std::size_t p = power_of_two_below(left);
    const float scale = inverse_root(p);
    for (std::size_t j = 0; j < p; ++j) at[j] *= scale;
    at += p;
    left -= p;
  }
  for (std::size_t j = 0; j < n; ++j) x[j] = flip(x[j], sign_of(seed, j));
}

static_assert([] {
  float x[6] = {3, -1, 4, 1, -5, 9};                                    // x (4 + 2)
  rotate(x, 6, 1);
  rotate_back(x, 6, 1);
  constexpr float was[6] = {3, -1, 4, 1, -5, 9};
  for (int j = 0; j < 6; ++j) {
    if (x[j] - was[j] > 1e-5f || was[j] - x[j] > 1e-5f) return false;
  }
  return true;
}());
static_assert([] {
  float x[6] = {3, -1, 4, 1, -5, 9};                                    // x (4 + 2)
  rotate(x, 6, 1);
  float squares = 0;
  for (const float y : x) squares += y * y;
  return squares > 132.9999f && squares < 133.0001f;                    // a rotation keeps the norm
}());

}  // namespace kvx
