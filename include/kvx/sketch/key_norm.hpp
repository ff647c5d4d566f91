#pragma once
// The norm byte: the length of a key on a logarithmic scale, for the coarse score.

#include <kvx/core/annotate.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// The norm byte of a key that is never found: one with NaN, infinity or a norm of 2^60 and more. A scan never proposes it.
inline constexpr std::uint8_t never_found = 0;

/// Square norms from here on count as infinite: far above any key, and far enough below the largest float that no sum overflows.
inline constexpr float largest_square_norm = 0x1p120f;

/// The byte of a norm: the nearest to 8 log2(norm) + 128 of 1..255, so steps of 9 %.
///
/// what        exponent and mantissa of the square are read, the latter compared with the borders 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8)
/// units       square_norm = |k'|^2; norms up to 2^-15.8 (zero too) have byte 1, from 2^15.8 on (57,000) 255
/// exactness   no rounding: the same byte everywhere
/// errors      NaN, and squares that are not below largest_square_norm: never_found
KVX_HD constexpr std::uint8_t norm_byte(float square_norm) {
  if (!(square_norm < largest_square_norm)) return never_found;
  const auto bits = __builtin_bit_cast(std::uint32_t, square_norm);
  const std::uint32_t mantissa = bits & 0x7fffffu;
  const int quarters =
      (mantissa >= 0x0b95c2u ? 1 : 0) + (mantissa >= 0x25fed7u ? 1 : 0) + (mantissa >= 0x45672bu ? 1 : 0) + (mantissa >= 0x6ac0c7u ? 1 : 0);
  const int byte = 4 * (static_cast<int>(bits >> 23) - 127) + 128 + quarters;
  return static_cast<std::uint8_t>(byte < 1 ? 1 : byte > 255 ? 255 : byte);
}

/// The norm that a byte stands for, 2^((byte - 128) / 8); 0 for never_found.
KVX_HD constexpr float norm_of(std::uint8_t byte) {
  if (byte == never_found) return 0;
  constexpr float roots[8] = {
      1, 0x1.172b84p+0f, 0x1.306fep+0f, 0x1.4bfdaep+0f, 0x1.6a09e6p+0f, 0x1.8ace54p+0f, 0x1.ae89fap+0f, 0x1.d5818ep+0f};  // 2^(i / 8)
  return __builtin_bit_cast(float, (static_cast<std::uint32_t>(byte / 8 - 16 + 127) << 23)) * roots[byte % 8];
}

/// norm_of for every byte.
inline constexpr std::array<float, 256> norm_values = [] {
  std::array<float, 256> values{};
  for (std::size_t b = 0; b < values.size(); ++b) values[b] = norm_of(static_cast<std::uint8_t>(b));
  return values;
}();

static_assert([] {
  for (int b = 1; b < 256; ++b) {  // the norm of a byte has that byte
    const float norm = norm_of(static_cast<std::uint8_t>(b));
    if (norm_byte(norm * norm) != b) return false;
  }
  return norm_byte(0) == 1 && norm_byte(1) == 128 && norm_of(128) == 1 && norm_byte(0x1p119f) == 255 && norm_byte(0x1p120f) == never_found;
}());

}  // namespace kvx
