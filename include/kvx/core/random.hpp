#pragma once
// Random bits that are a pure function of a seed and a position: no state, the same everywhere.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// 64 well mixed bits of (seed, position).
///
/// source      Steele, Lea, Flood 2014 (SplitMix64): the position-th output of the generator that starts at `seed`
KVX_HD constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t x = seed + (position + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
static_assert(random_bits(1234567, 0) == 6457827717110365317u && random_bits(1234567, 1) == 3203168211198807973u);

}  // namespace kvx
