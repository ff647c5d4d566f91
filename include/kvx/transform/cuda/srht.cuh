#pragma once
// The rotation of keys and queries on the device: one warp a vector, butterflies on shuffles, to the bits of `rotate`.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/random.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/transform/srht.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The random signs of a rotation of up to 576 components, 32 to a word: computed once a block.
struct sign_words {
  static constexpr int most = 18;
  std::uint32_t words[most];

  /// Sign of component 32 word + lane, to be XORed into it.
  __device__ std::uint32_t of(int word, int lane) const { return words[word] << (31 - lane) & 0x80000000u; }
};

/// Fills the signs of `dim` components. Others may read them behind a barrier.
__device__ __forceinline__ void fill_sign_words(std::uint64_t seed, int dim, sign_words& signs) {
  const int j = static_cast<int>(threadIdx.x);
  if (j < (dim + 31) / 32) signs.words[j] = static_cast<std::uint32_t>(random_bits(seed, static_cast<std::uint64_t>(j / 2)) >> j % 2 * 32);
}

/// The levels of butterflies of 32 N coordinates, stride after stride; x[i] of a lane is coordinate lane + 32 i. Lanes of a `block` below
/// 32 are transformed with the lanes of their block alone.
template <int N>
__device__ __forceinline__ void warp_butterflies(float (&x)[N], int block) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int stride = 1; stride < warp_lanes; stride *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(all_lanes, x[i], stride);
      if (stride < block) x[i] = (lane & stride) != 0 ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (int stride = 1; stride < N; stride *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

/// The blocks of 32 N coordinates and of fewer, down to 32, of a vector of `dim`.
template <int N, class Load, class Store>
__device__ __forceinline__ void rotate_blocks(int dim, const sign_words& signs, const Load& load, const Store& store) {
  if ((dim & 32 * N) != 0) {
    const int start = dim & ~(64 * N - 1), lane = lane_of_thread();
    float x[N];  // (32 N) of the warp
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = flip(load(start + lane, i), signs.of(start / 32 + i, lane));
    warp_butterflies(x, warp_lanes);
    constexpr float scale = inverse_root(static_cast<std::size_t>(32 * N));
#pragma unroll
    for (int i = 0; i < N; ++i) store(start + lane, i, rounded_product(x[i], scale));
  }
  if constexpr (N > 1) rotate_blocks<N / 2>(dim, signs, load, store);
}

/// rotate, by one warp.
///
/// what        store(d, i, y_j) for every j = d + 32 i < dim, y = rotate(x) with x_j = load(d, i): i is known to the compiler, so that
///             addresses differ by constants. Each lane stores what it has loaded, behind its loads: both may mean the same memory
/// shapes      dim 1..576
/// exactness   the additions of hadamard in its order: the same bits
/// cost        5 shuffles for each 32 components, log2 of the block additions
template <class Load, class Store>
__device__ __forceinline__ void warp_rotate(int dim, const sign_words& signs, const Load& load, const Store& store) {
  rotate_blocks<16>(dim, signs, load, store);
  const int rest = dim % warp_lanes;
  if (rest == 0) return;
  const int lane = lane_of_thread(), d = dim - rest + lane;
  // Blocks of 16, 8, .. side by side: that of a lane is the highest bit in which the lane and the rest differ.
  int block = 0;
  for (int p = 16, end = 0; p > 0; p /= 2) {
    if ((rest & p) == 0) continue;
    end += p;
    if (block == 0 && lane < end) block = p;
  }
  float x[1] = {lane < rest ? flip(load(d, 0), signs.of(dim / 32, lane)) : 0.0f};
  warp_butterflies(x, block);
  if (lane < rest) store(d, 0, rounded_product(x[0], inverse_root(static_cast<std::size_t>(block))));
}

/// The queries of a group, as they are and as the codes of the keys want them; by all warps of a block.
///
/// what        plain = q, rotated = rotate(q / balance)
/// shapes      q (N, Q, D), read at (row, head + g); plain, rotated (G, D), dense, of the device's memory or shared, plain may be null;
///             balance (D) or null: all 1; signs filled, behind a barrier
/// exactness   the bits of the host. Others may read the results behind a barrier
template <int Threads, class T>
__device__ __forceinline__ void rotate_queries(const tensor_view<const T, 3>& q, std::int64_t row, std::int64_t head, int group, int dim,
                                               const float* balance, const sign_words& signs, float* plain, float* rotated) {
  for (int g = warp_of_thread(); g < group; g += Threads / warp_lanes) {
    const std::int64_t at = std::int64_t{g} * dim;
    const auto load = [&](int d, int i) {
      const float x = to_float(*q.at(row, head + g, d + 32 * i));
      if (plain != nullptr) plain[at + d + 32 * i] = x;
      return balance != nullptr ? x / balance[d + 32 * i] : x;
    };
    warp_rotate(dim, signs, load, [&](int d, int i, float y) { rotated[at + d + 32 * i] = y; });
  }
}

}  // namespace kvx
