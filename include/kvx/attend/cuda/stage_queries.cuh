#pragma once
// Query rows in shared memory as operands of tensor cores, and what their scores are multiplied with.

#include <kvx/attend/cuda/operands.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// From a product of operands to a score in units of log 2.
///
/// what        score = cap > 0 ? cap tanh(factor product) : factor product, with a factor for each query row
struct score_rule {
  float factor = 1;  ///< scale log2(e), or scale / soft_cap
  float cap = 0;     ///< soft_cap log2(e)

  __device__ __forceinline__ float operator()(float product, float row_factor) const {
    const float score = product * row_factor;
    return cap > 0 ? cap * tanhf(score) : score;
  }
};

inline constexpr float log2_of_e = 0x1.715476p+0f;
inline constexpr float ln_of_2 = 0x1.62e43p-1f;

/// `scale` 0 means 1 / sqrt(D).
KVX_HD inline score_rule rule_of(float scale, float soft_cap, int key_dim) {
  if (scale == 0) scale = 1 / sqrtf(static_cast<float>(key_dim));
  return soft_cap > 0 ? score_rule{scale / soft_cap, soft_cap * log2_of_e} : score_rule{scale * log2_of_e, 0};
}

/// Writes operands of query rows 0 .. n - 1, zeros for the others of the block, and the factor of each.
///
/// what        a row is divided by the power of two below its largest component first, so that no query leaves the range of half
/// shapes      row(r) is the first component of row r, `stride` elements from one to the next
/// exactness   as many operands a component as Parts says; NaN and infinities stay
template <int Threads, element E, int Parts, class Row>
__device__ void stage_queries(const tile_memory& m, std::byte* shared, const Row& row, std::int64_t stride, int n, int key_dim,
                              const score_rule& rule) {
  using O = typename operand_of<E>::type;
  constexpr int most = 576 / warp_lanes;
  O* const queries = reinterpret_cast<O*>(shared);                                       // (Parts, rows, key_pitch)
  float* const factors = reinterpret_cast<float*>(shared + m.factors_at);                // (rows)
  const int lane = lane_of_thread();
  for (int r = warp_of_thread(); r < m.rows; r += Threads / warp_lanes) {
    float x[most];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int d = i * warp_lanes + lane;
      x[i] = r < n && d < key_dim ? to_float(row(r)[d * stride]) : 0.0f;
      const float size = x[i] < 0 ? -x[i] : x[i];
      largest = largest < size ? size : largest;
    }
    largest = warp_max(largest);
    int exponent = static_cast<int>(__builtin_bit_cast(unsigned, largest) >> 23) - 127;
    exponent = largest == 0 || exponent > 127 ? 0 : exponent > 100 ? 100 : exponent < -100 ? -100 : exponent;
    const float down = __builtin_bit_cast(float, static_cast<unsigned>(127 - exponent) << 23);
    const float up = __builtin_bit_cast(float, static_cast<unsigned>(127 + exponent) << 23);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int d = i * warp_lanes + lane;
      if (d < m.depth()) {
        float left = x[i] * down;
#pragma unroll
        for (int p = 0; p < Parts; ++p) {
          const O part = round_to<O>(left);
          queries[p * m.query_plane + r * m.key_pitch + d] = part;
          left = rest_of(left, to_float(part));
        }
      }
    }
    if (lane == 0) factors[r] = rule.factor * up;
  }
}

}  // namespace kvx
