#pragma once
// Sums of numbers between 0 and 1 in fixed point: exact, so that neither order nor threads nor vector width can matter.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// x in units of 2^-38, rounded to nearest even.
///
/// shapes      0 <= x <= 1; 2^24 such terms fit in 63 bits
/// exactness   integers from here on; what is lost is below 2^-39 a term
KVX_HD constexpr std::int64_t fixed_point(float x) {
  // Adding 2^14 puts the unit of 2^-38 in the last place of a double.
  return __builtin_bit_cast(std::int64_t, static_cast<double>(x) + 0x1p14) - __builtin_bit_cast(std::int64_t, 0x1p14);
}

/// The value of a sum of such terms.
KVX_HD constexpr double from_fixed_point(std::int64_t sum) { return static_cast<double>(sum) * 0x1p-38; }

static_assert(fixed_point(1) == std::int64_t{1} << 38 && fixed_point(0x1p-39f) == 0 && fixed_point(0x1.8p-38f) == 2);
static_assert(from_fixed_point(fixed_point(0.25f) + fixed_point(0.5f)) == 0.75);

}  // namespace kvx
