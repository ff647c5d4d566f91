#pragma once
// Attention of 64 query rows by a block: each warp has 16 of them, all keys and all components.

#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/attend/cuda/tile_products.cuh>
#include <kvx/backend/cuda/collectives.cuh>

#include <cuda_runtime.h>

#include <cstddef>

namespace kvx {

/// Sums and softmax of 16 rows a warp. For prompts: scores and weights stay in registers between the two products.
///
/// shapes      rows 16 w + g and 16 w + g + 8 of lane 4 g + t of warp w; components 16 i .. + 15 of the sums, i < Pairs: Pairs must reach
///             Dv
/// exactness   weights are rounded to E, as in every prompt kernel on tensor cores; those of float rows have 24 bits
/// source      Dao 2023 (FlashAttention-2), section 3: no warp needs another's rows
template <int Threads, int Pairs, element E, int QP>
struct prompt_tile {
  using O = typename operand_of<E>::type;
  static constexpr int rows = Threads / warp_lanes * 16;
  static constexpr int query_parts = QP;
  static constexpr int row_parts = operand_of<E>::parts;
  static constexpr int weight_parts = row_parts;
  static constexpr int blocks = 2;  // of a multiprocessor, as far as registers go
  static constexpr int keys = 32;

  row_softmax softmax;
  float sums[Pairs][2][4] = {};

  static __device__ __forceinline__ int first_row() { return warp_of_thread() * 16; }
  static __device__ __forceinline__ int component(int pair) { return pair * 16; }
  static __device__ __forceinline__ int pairs(int value_dim) { return (value_dim + 15) / 16; }

  /// Takes in the n keys of one stage. All threads call; a barrier inside where the mask hides something.
  template <class Mask>
  __device__ void take(const tile_memory& m, std::byte* shared, int stage, int n, int value_dim, const score_rule& rule, const Mask& mask) {
    const O* const queries = reinterpret_cast<const O*>(shared);                                 // (QP, rows, key_pitch)
    const O* const k = queries + m.keys_at + stage * m.key_stage;                                // (parts, keys, key_pitch)
    const O* const v = queries + m.values_at + stage * m.value_stage;                            // (parts, keys, value_pitch)
    const float* const factors = reinterpret_cast<const float*>(shared + m.factors_at);          // (rows)
    const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;

    float s[keys / 8][4], factor[2];
    score_products<O, row_parts, QP>(s, queries + first_row() * m.key_pitch, m.query_plane, k, m.key_plane, m.key_pitch, m.depth());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row() + g + 8 * r;
      const float row_factor = factors[row];
#pragma unroll
      for (int j = 0; j < keys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = j * 8 + 2 * t + e;
          s[j][2 * r + e] = at < n && (!mask.hides || mask.sees(row, at)) ? rule(s[j][2 * r + e], row_factor) : -infinity;
        }
      }
    }
    softmax.take(s, factor);
#pragma unroll
    for (int i = 0; i < Pairs; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[i][e / 4][e % 4] *= factor[e % 4 / 2];
    }
    if (mask.hides && __syncthreads_or(finds_no_number<Threads>(v, n, m.value_pitch, value_dim)) != 0)
      return add_seen_values<O, row_parts>(sums, s, v, n, m.value_plane, m.value_pitch, 16, pairs(value_dim));
#pragma unroll
    for (int j = 0; j < keys / 8; j += 2) {
      if (j * 8 < n) {
        add_values<O, row_parts, weight_parts>(sums, s[j], s[j + 1], v + j * 8 * m.value_pitch, m.value_plane, m.value_pitch, 16,
                                               pairs(value_dim));
      }
    }
  }
};

}  // namespace kvx
