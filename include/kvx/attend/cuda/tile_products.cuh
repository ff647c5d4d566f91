#pragma once
// The two products of attention on tensor cores, and the online softmax between them, for one warp and 16 query rows.

#include <kvx/attend/cuda/operands.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/mma.cuh>
#include <kvx/backend/cuda/power_of_two.cuh>
#include <kvx/core/math.hpp>

#include <cuda_runtime.h>

namespace kvx {

// Fragments as in mma.cuh: lane 4 g + t holds rows g and g + 8, and of every 8 columns the two from 2 t on.

/// Products of 16 query rows with N times 8 keys.
///
/// shapes      queries (QP, 16, pitch), keys (KP, 8 N, pitch) in shared memory, `depth` components of each; s (N, 16, 8)
/// exactness   all products of parts that a float can tell from nothing, added in float. Where the coarsest parts give no number, such as
///             at infinite keys, theirs stands
template <class O, int KP, int QP, int N>
__device__ __forceinline__ void score_products(float (&s)[N][4], const O* queries, int query_plane, const O* keys, int key_plane, int pitch,
                                               int depth) {
  const int lane = lane_of_thread();
  const O* const query = queries + lane % 16 * pitch + lane / 16 * 8;
  const O* const key = keys + lane % 8 * pitch + lane / 8 * 8;
  float rest[N][4];
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) s[j][e] = rest[j][e] = 0;
  }
#pragma unroll 1
  for (int d = 0; d < depth; d += 32) {
    unsigned a[QP][2][4];
#pragma unroll
    for (int p = 0; p < QP; ++p) {
      load_matrices(a[p][0], query + p * query_plane + d);
      load_matrices(a[p][1], query + p * query_plane + d + 16);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int i = 0; i < KP; ++i) {
        unsigned b[4];
        load_matrices(b, key + i * key_plane + j * 8 * pitch + d);
#pragma unroll
        for (int p = 0; p < QP; ++p) {
          if (!counts<KP, QP>(i, p)) continue;
          mma<O>(i + p == 0 ? s[j] : rest[j], a[p][0], b[0], b[1]);
          mma<O>(i + p == 0 ? s[j] : rest[j], a[p][1], b[2], b[3]);
        }
      }
    }
  }
  if constexpr (KP * QP > 1) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = s[j][e] - s[j][e] == 0 ? s[j][e] + rest[j][e] : s[j][e];
    }
  }
}

/// What a lane keeps of the softmax of its two rows: the maximum in units of log 2, and the sum of its own columns' weights.
struct row_softmax {
  float max[2] = {-infinity, -infinity};
  float sum[2] = {0, 0};

  /// Scores become weights; `factor` is what older sums are multiplied with. A score of -inf gets weight 0, NaN shows in the sum.
  template <int N>
  __device__ __forceinline__ void take(float (&s)[N][4], float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max[r];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        top = s[j][2 * r] > top ? s[j][2 * r] : top;
        top = s[j][2 * r + 1] > top ? s[j][2 * r + 1] : top;
      }
      top = warp_max<4>(top);
      const float against = top == -infinity ? 0 : top;
      factor[r] = power_of_two(max[r] - against);
      float added = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        s[j][2 * r] = power_of_two(s[j][2 * r] - against);
        s[j][2 * r + 1] = power_of_two(s[j][2 * r + 1] - against);
        added += s[j][2 * r] + s[j][2 * r + 1];
      }
      sum[r] = sum[r] * factor[r] + added;
      max[r] = top;
    }
  }

  /// The sums over all columns.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = warp_sum<4>(sum[r]);
  }
};

/// Adds the weighted values of 16 keys to the sums.
///
/// shapes      weights of 16 rows and 16 keys in two fragments of 8 columns; values (VP, 16, pitch) in shared memory, of which the pairs of
///             8 components `step` apart are taken; sums (Pairs, 2, 16, 8), the first `pairs` of them
/// exactness   a weight is a sum of PP operands: of one, it is rounded to E
template <class O, int VP, int PP, int Pairs>
__device__ __forceinline__ void add_values(float (&sums)[Pairs][2][4], const float (&low)[4], const float (&high)[4], const O* values,
                                           int value_plane, int pitch, int step, int pairs) {
  unsigned words[4][PP];
  split<O>(low[0], low[1], words[0]);
  split<O>(low[2], low[3], words[1]);
  split<O>(high[0], high[1], words[2]);
  split<O>(high[2], high[3], words[3]);
  const int lane = lane_of_thread();
  const O* const value = values + lane % 16 * pitch + lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < Pairs; ++i) {
    if (i < pairs) {
#pragma unroll
      for (int v = 0; v < VP; ++v) {
        unsigned b[4];
        load_transposed(b, value + v * value_plane + i * step);
#pragma unroll
        for (int p = 0; p < PP; ++p) {
          if (!counts<VP, PP>(v, p)) continue;
          const unsigned a[4] = {words[0][p], words[1][p], words[2][p], words[3][p]};
          mma<O>(sums[i][0], a, b[0], b[1]);
          mma<O>(sums[i][1], a, b[2], b[3]);
        }
      }
    }
  }
}

/// The same for tiles that hold an infinity or a NaN which not all rows see: keys of weight 0 are left out. One of n keys after the other.
template <class O, int VP, int N, int Pairs>
__device__ void add_seen_values(float (&sums)[Pairs][2][4], const float (&weights)[N][4], const O* values, int n, int value_plane,
                                int pitch, int step, int pairs) {
  const int lane = lane_of_thread(), t = lane % 4;
#pragma unroll
  for (int j = 0; j < N; ++j) {
#pragma unroll 1
    for (int k = 0; k < 8 && j * 8 + k < n; ++k) {
      const float above = __shfl_sync(all_lanes, k % 2 == 0 ? weights[j][0] : weights[j][1], lane - t + k / 2);
      const float below = __shfl_sync(all_lanes, k % 2 == 0 ? weights[j][2] : weights[j][3], lane - t + k / 2);
#pragma unroll
      for (int i = 0; i < Pairs; ++i) {
        if (i < pairs) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const O* const at = values + (j * 8 + k) * pitch + i * step + e / 2 * 8 + 2 * t + e % 2;
            float value = to_float(at[0]);
#pragma unroll
            for (int v = 1; v < VP; ++v) value += to_float(at[v * value_plane]);
            if (above != 0) sums[i][e / 2][e % 2] += above * value;
            if (below != 0) sums[i][e / 2][2 + e % 2] += below * value;
          }
        }
      }
    }
  }
}

/// Whether a tile's values hold an infinity or a NaN; every thread looks at its share.
template <int Threads, class O>
__device__ bool finds_no_number(const O* values, int rows, int pitch, int dim) {
  bool found = false;
  const int words = (dim + 1) / 2;
  for (int i = static_cast<int>(threadIdx.x); i < rows * words; i += Threads)
    found = found || has_no_number<O>(*reinterpret_cast<const unsigned*>(values + i / words * pitch + i % words * 2));
  return found;
}

}  // namespace kvx
