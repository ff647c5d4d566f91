#pragma once
// The kernels that score candidates: inner products with key codes, exponentials with portable bits.

#include <kvx/backend/simd/level.hpp>
#include <kvx/core/element.hpp>

#include <cstdint>

namespace kvx::simd {

/// Coordinates that the code kernels take at once. Integer queries are zero from D up to a multiple of it.
inline constexpr int code_chunk = 64;
inline constexpr int most_chunks = 576 / code_chunk;

/// Keys of one call of code_sums at most; rows of its sums are this long.
inline constexpr int code_block = 32;

/// How the keys of one (sequence, KV head) are coded; see key_sketch.hpp.
///
/// subspace         coordinates that share a weight: 4, 8, 16; 0: the whole key
/// magnitude_bytes, weights    of one key
/// sign_pitch       bytes from one plane byte of a key's signs to the next
/// levels           (128) what each magnitude index stands for, 0..127, those that do not exist 0
/// last_levels      (128) the same for the coordinates from `last` on; last = dim where there are none
struct code_format {
  int dim = 0;
  int subspace = 0;
  std::int64_t magnitude_bytes = 0;
  std::int64_t weights = 0;
  std::int64_t sign_pitch = 0;
  const std::uint8_t* levels = nullptr;
  const std::uint8_t* last_levels = nullptr;
  int last = 0;

  constexpr int chunks() const { return (dim + code_chunk - 1) / code_chunk; }
};

/// Where the parts of one key's code lie.
struct code_address {
  const std::uint8_t* signs = nullptr;       ///< plane bytes, sign_pitch apart
  const std::uint8_t* magnitudes = nullptr;  ///< (magnitude bits, plane bytes)
  const half* weights = nullptr;             ///< one for each subspace, or one
};

/// Lanes of a float sum over a key's code: term i is added to lane i % 16 in ascending order, by a fused multiply-add, and the lanes
/// are added as (g0 + g2) + (g1 + g3) with g_i = (l_4i + l_4i+2) + (l_4i+1 + l_4i+3).
inline constexpr int code_lanes_wide = 16;

/// sums[g][t] = sum over the quads u of four coordinates of w_t,u (v_t,u . q_g,u), v the signed levels of key t, in integers
/// within a quad, in float lanes (code_lanes_wide) over quads; with one weight a key in integers over the whole key, then times w.
/// count is rounded up to 1, 2 or a multiple of 4; q for each 1, 2 or 4 of these heads [chunks][heads][64]; sums (count, 32). While key t
/// is read, magnitudes and weights of next[t] are asked for.
using code_function = void (*)(const code_format& format, const std::int8_t* q, int count, const code_address* keys, int n,
                               const code_address* next, int next_n, float* sums);

/// Where component d of head g of `count` lies in q.
constexpr std::int64_t code_query_place(int count, int dim, int g, int d) {
  const int heads = count < 4 ? count : 4, chunks = (dim + code_chunk - 1) / code_chunk;
  return ((std::int64_t{g / heads} * chunks + d / code_chunk) * heads + g % heads) * code_chunk + d % code_chunk;
}

/// Kernels of the rerank stage. Every one gives the same bits in every instruction set.
struct rerank_table {
  instruction_set set;
  /// Sums over codes of 1, 3 or 7 magnitude bits: only those that a program names are compiled (dispatch.hpp).
  template <int MagnitudeBits>
  code_function code_sums() const;
  /// out[t] = unit sums[t] + terms[t], in double, rounded once.
  void (*logits)(float unit, const float* sums, const float* terms, int n, float* out);
  /// The largest of n floats, NaN left out; -inf for none.
  float (*largest)(const float* x, std::int64_t n);
  /// e[t] = quick_exp(x[t] - max), for a max that no x exceeds (+inf included); returns the sum of fixed_point(e[t]), NaN left out.
  std::int64_t (*exponentials)(const float* x, std::int64_t n, float max, float* e);
  /// scores[t] = sum_g e[g][t] factors[g], ascending in g, products and sums floats rounded by themselves. e (count, pitch).
  void (*mix)(const float* e, std::int64_t pitch, int count, const float* factors, std::int64_t n, float* scores);
  /// How many of n floats are at least `level`; NaN is not.
  std::int64_t (*count_at_least)(const float* x, std::int64_t n, float level);
  /// Writes first + t for each of them, ascending, and returns how many; `out` has room for n.
  std::int64_t (*take_at_least)(const float* x, std::int64_t n, float level, std::int32_t first, std::int32_t* out);
};

}  // namespace kvx::simd
