#pragma once
// What the kernels that encode keys are: one table of functions, the same for every instruction set.

#include <kvx/backend/simd/level.hpp>
#include <kvx/core/element.hpp>

#include <concepts>
#include <cstdint>

namespace kvx::simd {

/// Keys of more components than this are refused (page_shape).
inline constexpr int longest_key = 576;

/// Floats of the vectors that an encode kernel reads along a key: all components in lane order (lane_position), zero in the padding.
inline constexpr int encode_pitch = longest_key + 32;

/// A codebook as kernels read it: 8 levels and 9 squared thresholds may be read, whatever the bits.
struct encode_book {
  const float* levels = nullptr;
  const float* squared_thresholds = nullptr;
};

/// How keys are encoded, and where to; see key_code.hpp for the rules.
///
/// centre      (encode_pitch) what is subtracted from every key, in lane order
/// balance     (encode_pitch) what the difference is multiplied with, in lane order
/// flips       (encode_pitch) random signs, +0 or -0, in lane order
/// book        of whole subspaces, or of the key where it has one weight; last_book: of a narrower last subspace
/// divisor     square radii are divided by it before they are compared: 1, or the components of a key in units of its root mean square
/// signs       address of slot 0 of plane byte 0; plane bytes are page_tokens apart
/// magnitudes  (P, bits, plane_bytes) · weights (P, weights): null without magnitude bits
struct encode_task {
  int dim = 0;
  int subspace = 0;
  int magnitude_bits = 0;
  bool one_weight = false;
  float divisor = 1;
  const float* centre = nullptr;
  const float* balance = nullptr;
  const float* flips = nullptr;
  encode_book book;
  encode_book last_book;
  int page_tokens = 0;
  std::uint8_t* signs = nullptr;
  std::uint8_t* magnitudes = nullptr;
  half* weights = nullptr;
};

/// Kernels over rows of stored keys, `stride` elements apart.
///
/// exactness   every key in a lane of its own, sums in ascending order, products rounded: the same bits from every instruction set
/// errors      none; what a NaN key gets is undefined but for its square norm, which is NaN or infinite; other keys are not touched by it
template <class E>
struct mean_functions {
  /// sums[lane_position(d)] = rows[0][d] + rows[1][d] + ... in float, in this order; sums (encode_pitch).
  void (*sum)(const E* rows, std::int64_t stride, int n, int dim, float* sums);
  /// sums = sums / count, rounded to bf16, 0 where that is not finite, in lane order; mean (dim) the same in natural order.
  void (*mean)(float* sums, int dim, float count, bf16* mean);
};

/// Encodes the keys of slots [slot, slot + n) of the page; `rows` is the row of slot 0, square_norms (n) those of the keys.
template <class E>
using encode_function = void (*)(const encode_task& task, const E* rows, std::int64_t stride, int slot, int n, float* square_norms);

struct encode_table {
  instruction_set set;
  int lanes;  ///< keys side by side: the best n is a multiple of it

  /// The functions for rows of E, and for codes of so many magnitude bits: only those that a program names are compiled (dispatch.hpp).
  template <class E>
  const mean_functions<E>& means() const;
  template <class E, int MagnitudeBits>
  encode_function<E> encode() const;
};

}  // namespace kvx::simd
