#pragma once
// What the inner kernels are: one table of functions, the same for every instruction set.

#include <kvx/backend/simd/level.hpp>
#include <kvx/core/element.hpp>

#include <concepts>
#include <cstdint>

namespace kvx::simd {

/// Rows of scores and weights are this long: the most tokens of one block.
inline constexpr int block_tokens = 64;

/// Floats that a kernel may touch beyond a vector of n: every float vector handed to a kernel is allocated in multiples of this.
inline constexpr int padding = 32;

/// Columns of converted values are zero up to a multiple of this.
inline constexpr int column_step = 8;

/// Floats from one converted key to the next, for keys of at most 128 components and for longer ones: constants, so that the
/// registers of panel_scores hold sums and not addresses.
inline constexpr int short_key_pitch = 128;
inline constexpr int long_key_pitch = 576;
constexpr std::int64_t key_pitch(std::int64_t dim) { return dim <= short_key_pitch ? short_key_pitch : long_key_pitch; }

/// Kernels over rows of stored elements.
///
/// shapes      rows are addresses of n <= 64 rows; `next` (null: none) are those that the next call will read, and are prefetched;
///             float vectors of a row's length are in lane order (lane_position) and zero in their padding
/// exactness   sums are float, in an order that is fixed within an instruction set
/// errors      none; nothing is read beyond the dim components of a row, neighbours and padding may hold NaN
template <class E>
struct row_kernels {
  /// scores[g][t] = q_g . rows[t]; q (count, pitch), scores (count, 64), undefined beyond n.
  void (*dots)(const float* q, std::int64_t pitch, int count, const E* const* rows, int n, const E* const* next, int next_n, int dim,
               float* scores);
  /// sums_g = factor_g sums_g + sum_t weights[g][t] rows[t]; weights (count, 64), sums (count, pitch).
  void (*weighted_sum)(const float* weights, const float* factors, int count, const E* const* rows, int n, const E* const* next, int next_n,
                       int dim, float* sums, std::int64_t pitch);
};

/// A row of stored elements as floats, and back.
template <class E>
struct row_conversions {
  /// out = row, in natural order; exact.
  void (*to_floats)(const E* row, int dim, float* out);
  /// out = row, rounded to nearest even; the bits of round_to.
  void (*from_floats)(const float* row, int dim, E* out);
};

/// Kernels over panels: `panel` query rows side by side in lanes, everything else transposed to fit. Float blocks only.
struct panel_kernels {
  /// Rows of a panel, W in shapes.
  int width;
  /// scores[t][w] = keys_t . q_w for t < n, n a multiple of 8; keys (n, key_pitch), q (dim, W).
  void (*scores)(const float* keys, int n, int dim, const float* q, float* scores);
  /// One block of an online softmax down the columns of scores (n, W); see row_softmax. Of column w only low_w <= t < high_w is
  /// visible, the rest becomes weight 0; low null: all are.
  void (*softmax)(float* scores, int n, float cap, const float* low, const float* high, float* max, float* sum, float* factor);
  /// sums[d][w] = factor_w sums[d][w] + sum_t values[t][d] weights[t][w]; dim a multiple of 8, values (n, pitch), finite.
  void (*weighted_sum)(const float* values, std::int64_t pitch, int n, int dim, const float* weights, const float* factor, float* sums);
};

struct kernel_table {
  instruction_set set;
  int lanes;  ///< floats in a vector
  /// One block of an online softmax: caps (cap > 0), takes the new maximum, replaces scores[g][t] by exp(score - max), adds them to
  /// sum, and leaves in factor what earlier sums must be multiplied with. scores (count, 64), the others (count).
  void (*row_softmax)(float* scores, int count, int n, float cap, float* max, float* sum, float* factor);
  /// Whether n floats (a multiple of 8) hold neither NaN nor infinity.
  bool (*all_finite)(const float* x, std::int64_t n);
  panel_kernels short_keys;
  panel_kernels long_keys;
  const panel_kernels& panels(std::int64_t dim) const { return dim <= short_key_pitch ? short_keys : long_keys; }

  /// sums += sum_t weights[t] rows[t], by which pieces of attention are merged; n <= 64 rows of floats.
  void (*merge)(const float* weights, const float* const* rows, int n, int dim, float* sums);

  /// The kernels for rows of E; only those of elements that a program names are compiled (dispatch.hpp).
  template <class E>
  const row_kernels<E>& rows() const;
  template <class E>
  const row_conversions<E>& conversions() const;
};

/// Where component d of a row lies in a float vector in lane order.
///
/// Two bf16 in a 32-bit lane become two floats by a shift and a mask, so rows of bf16 are taken apart into even and odd components:
/// per 2 * lanes components first the even ones, then the odd ones. Other elements keep their order.
template <class E>
constexpr int lane_position(int d, int lanes) {
  if constexpr (std::same_as<E, bf16>) {
    return d / (2 * lanes) * (2 * lanes) + d % 2 * lanes + d % (2 * lanes) / 2;
  } else {
    return d;
  }
}
static_assert(lane_position<bf16>(1, 8) == 8 && lane_position<bf16>(18, 8) == 17 && lane_position<half>(18, 8) == 18);

}  // namespace kvx::simd
