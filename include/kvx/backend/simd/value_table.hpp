#pragma once
// The kernel that adds up coded values.

#include <kvx/backend/simd/level.hpp>

#include <cstdint>

namespace kvx::simd {

/// Tokens of one call of value_sums at most; rows of its weights are this long.
inline constexpr int value_block = 32;

/// Bytes of a code that the kernels take at once.
inline constexpr int value_chunk = 32;

/// Most heads of one call.
inline constexpr int most_value_heads = 128;

/// How the values of one layer are coded; see value_code.hpp.
///
/// row_bytes   of a token, a multiple of 4
/// levels      (16) what each field stands for, -127..127
struct value_format {
  int dim = 0;
  std::int64_t row_bytes = 0;
  const std::int8_t* levels = nullptr;

  constexpr int chunks() const { return static_cast<int>((row_bytes + value_chunk - 1) / value_chunk); }
};

/// Floats of a head's sums: of a dim that is coded in `bits` bits.
constexpr std::int64_t value_sums_pitch(const value_format& f, int bits) { return std::int64_t{f.chunks()} * value_chunk * (8 / bits); }

/// Where coordinate d lies in the sums: the order that unpacking four tokens' bytes beside each other gives.
constexpr std::int64_t value_place(int bits, int d) {
  const int each = 8 / bits, field = d % each, y = d / each, at = y % value_chunk;
  return ((std::int64_t{y / value_chunk} * each + field) * 4 + at % 16 / 4) * 8 + at / 16 * 4 + at % 4;
}

/// sums[g][place(d)] += sum_t weights[g][t] level(field of coordinate d of codes[t]), weights of a head in whole numbers of at most 127 of
/// their largest: products and their sum in integers, taken into float sums once a call.
///
/// shapes      codes (n) addresses of rows, n <= 32; next (next_n): those of the next call, asked for; weights (count, 32), 0 beyond n;
///             sums (count, pitch)
/// exactness   weights are rounded to 1/254 of a head's largest one, ties to even; integers; float sums in the order of the calls, which
///             instruction sets may round differently
using value_function = void (*)(const value_format& format, const std::uint8_t* const* codes, int n, const std::uint8_t* const* next,
                                int next_n, const float* weights, int count, float* sums, std::int64_t pitch);

/// The kernel of a set for codes of so many bits (2, 4): only those that a program names are compiled (dispatch.hpp).
template <int Bits>
value_function value_sums_of(instruction_set set);

}  // namespace kvx::simd
