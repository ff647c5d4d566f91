#pragma once
// Attention of up to 16 query rows by a whole block: warps share the keys of a tile for scores, and the components of values for sums.

#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/attend/cuda/tile_products.cuh>
#include <kvx/backend/cuda/collectives.cuh>

#include <cuda_runtime.h>

#include <cstddef>

namespace kvx {

/// Sums and softmax of a block whose 16 rows see the same keys. For decoding: keys and values are read once for all heads of a group.
///
/// shapes      rows g and g + 8 of lane 4 g + t; warp w has components 16 (w + warps i) .. + 15 of the sums, i < Pairs: Pairs must reach Dv
/// exactness   weights in two operands, of float rows in three: 16 bits and more. Every warp has the same softmax, to the bit
template <int Threads, int Pairs, element E, int QP>
struct group_tile {
  using O = typename operand_of<E>::type;
  static constexpr int warps = Threads / warp_lanes;
  static constexpr int query_parts = QP;
  static constexpr int row_parts = operand_of<E>::parts;
  static constexpr int weight_parts = row_parts > 1 ? row_parts : 2;
  static constexpr int blocks = Pairs <= 2 ? 4 : 2;  // of a multiprocessor, as far as registers go
  static constexpr int most_keys = 32;

  row_softmax softmax;
  float sums[Pairs][2][4] = {};

  static __device__ __forceinline__ int first_row() { return 0; }
  static __device__ __forceinline__ int component(int pair) { return (warp_of_thread() + warps * pair) * 16; }
  static __device__ __forceinline__ int pairs(int value_dim) {
    const int all = (value_dim + 15) / 16 - warp_of_thread();
    return all > 0 ? (all + warps - 1) / warps : 0;
  }

  /// Takes in the n keys of one stage. All threads call; a barrier inside.
  template <class Mask>
  __device__ void take(const tile_memory& m, std::byte* shared, int stage, int n, int value_dim, const score_rule& rule, const Mask& mask) {
    const O* const queries = reinterpret_cast<const O*>(shared);  // (QP, 16, key_pitch)
    const O* const keys = queries + m.keys_at + stage * m.key_stage;  // (parts, keys, key_pitch)
    const O* const values = queries + m.values_at + stage * m.value_stage;  // (parts, keys, value_pitch)
    float* const scores = reinterpret_cast<float*>(shared + m.scores_at);  // (16, score_pitch)
    const float* const factors = reinterpret_cast<const float*>(shared + m.factors_at);  // (16)
    const int g = lane_of_thread() / 4, t = lane_of_thread() % 4, pitch = m.score_pitch();

    for (int j = warp_of_thread(); j * 8 < m.keys; j += warps) {
      float s[1][4] = {};
      if (j * 8 < n)
        score_products<O, row_parts, QP>(s, queries, m.query_plane, keys + j * 8 * m.key_pitch, m.key_plane, m.key_pitch, m.depth());
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = g + 8 * r, at = j * 8 + 2 * t;
        float2 pair;
        pair.x = at < n && mask.sees(row, at) ? rule(s[0][2 * r], factors[row]) : -infinity;
        pair.y = at + 1 < n && mask.sees(row, at + 1) ? rule(s[0][2 * r + 1], factors[row]) : -infinity;
        *reinterpret_cast<float2*>(scores + row * pitch + at) = pair;
      }
    }
    bool exact = false;
    if (mask.hides) {
      exact = __syncthreads_or(finds_no_number<Threads>(values, n, m.value_pitch, value_dim)) != 0;
    } else {
      __syncthreads();
    }

    float s[most_keys / 8][4], factor[2];
#pragma unroll
    for (int j = 0; j < most_keys / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float2 pair{-infinity, -infinity};
        if (j * 8 < m.keys) pair = *reinterpret_cast<const float2*>(scores + (g + 8 * r) * pitch + j * 8 + 2 * t);
        s[j][2 * r] = pair.x;
        s[j][2 * r + 1] = pair.y;
      }
    }
    softmax.take(s, factor);
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i][e / 4][e % 4] *= factor[e % 4 / 2];
    }
    const O* const mine = values + component(0);
    if (exact) return add_seen_values<O, row_parts>(sums, s, mine, n, m.value_plane, m.value_pitch, warps * 16, pairs(value_dim));
#pragma unroll
    for (int j = 0; j < most_keys / 8; j += 2) {
      if (j * 8 < n) {
        add_values<O, row_parts, weight_parts>(sums, s[j], s[j + 1], mine + j * 8 * m.value_pitch, m.value_plane, m.value_pitch, warps * 16,
                                               pairs(value_dim));
      }
    }
  }
};

}  // namespace kvx
