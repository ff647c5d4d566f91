#pragma once
// Scores of keys by votes: the weights of their buckets, looked up in shared memory.

#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/sign_scores.cuh>
#include <kvx/sketch/key_norm.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Weights of buckets in shared memory, as a prepared query holds them, and what votes are divided by.
template <int Subspace>
struct vote_scorer {
  static_assert(Subspace == 4 || Subspace == 8);
  std::byte* weights;
  int shift;

  /// Weight of the bucket, or of both, of a plane byte.
  __device__ __forceinline__ int weight(int plane, std::uint32_t byte) const {
    const auto* const table = reinterpret_cast<const std::uint8_t*>(weights);
    if constexpr (Subspace == 8) return table[256 * plane + static_cast<int>(byte)];
    return table[32 * plane + static_cast<int>(byte & 15)] + table[32 * plane + 16 + static_cast<int>(byte >> 4)];
  }

  /// Scores of `keys` keys, 4 or 1, one below the other; see sign_scorer.
  __device__ __forceinline__ std::uint32_t score(const std::uint8_t* signs, int pitch, int planes, const std::uint8_t* norms,
                                                 int keys) const {
    constexpr int tile = 4;
    const std::uint32_t norm = norms != nullptr ? load_keys(norms, keys) : ~0u;
    int votes[4] = {};
    for (int first = 0; first < planes; first += tile) {
      std::uint32_t bytes[tile];                                        // of up to four keys each
#pragma unroll
      for (int i = 0; i < tile; ++i) {
        bytes[i] = first + i < planes ? load_keys(signs, keys) : 0;
        signs += pitch;
      }
#pragma unroll
      for (int i = 0; i < tile; ++i) {
        if (first + i < planes) {
#pragma unroll
          for (int j = 0; j < 4; ++j) votes[j] += weight(first + i, bytes[i] >> 8 * j & 255);
        }
      }
    }
    std::uint32_t scores = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((norm >> 8 * j & 255) != never_found) scores |= static_cast<std::uint32_t>((votes[j] >> shift) + 1) << 8 * j;
    }
    return scores;
  }
};

}  // namespace kvx
