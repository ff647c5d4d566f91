#pragma once
// Integer arithmetic that sizes need: rounding to multiples, and products that cannot wrap unseen.

#include <kvx/core/annotate.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvx {

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8, "kvx needs a 64-bit host: offsets are 64 bits wide");
static_assert(std::endian::native == std::endian::little, "kvx needs a little-endian host: rows and codes are read as bytes");

/// Smallest q with q * b >= a (a >= 0, b > 0).
KVX_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Smallest multiple of b that is at least a.
KVX_HD constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// Largest multiple of b that is at most a (a >= 0).
KVX_HD constexpr std::int64_t round_down(std::int64_t a, std::int64_t b) { return a - a % b; }

/// a * b for sizes (both >= 0), or -1 where the product leaves 63 bits or a factor is already -1.
constexpr std::int64_t checked_product(std::int64_t a, std::int64_t b) {
  if (a < 0 || b < 0) return -1;
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b) return -1;
  return a * b;
}
static_assert(checked_product(std::int64_t{1} << 40, std::int64_t{1} << 30) == -1 && checked_product(1 << 20, 16384) == 17179869184);
static_assert(ceil_div(0, 64) == 0 && ceil_div(65, 64) == 2 && round_up(65, 64) == 128 && round_down(127, 64) == 64);

}  // namespace kvx
