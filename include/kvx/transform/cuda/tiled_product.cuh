#pragma once
// The product of half_product.hpp without a library: tiles on tensor cores, three of them on their way.

#include <kvx/backend/cuda/async_copy.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/mma.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/transform/half_product.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// A block's tile of the result, and how it is shared out: eight warps, 64 tokens by 32 columns each.
///
/// project     tiles of x and b are (128, 32): rows of k side by side
/// restore     tiles of x and b are (32, 128): a row of every k
/// pitches     odd multiples of 16 bytes, so that eight rows lie in different banks
template <half_product::direction Way>
struct product_tile {
  static constexpr bool restores = Way == half_product::direction::restore;
  static constexpr int threads = 256, tokens = 128, columns = 128, depth = 32, stages = 3;
  static constexpr int rows = restores ? depth : tokens, width = restores ? tokens : depth, pitch = width + 8;
  static constexpr int plane = rows * pitch, stage = 3 * plane;  // high, low, b
  static constexpr std::size_t bytes = std::size_t{2} * stages * stage;
  static_assert(tokens == columns && pitch / 8 % 2 == 1);
};

/// Eight halves of a row on their way to shared memory; zeros beyond the matrix.
__device__ __forceinline__ void stage_part(half* to, const half* from, std::int64_t left) {
  if (left >= 8 && on_16(from)) {
    begin_copy_16(to, from);
    return;
  }
  unsigned words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < left) words[i / 2] |= static_cast<unsigned>(from[i].bits) << i % 2 * 16;
  }
  store_16(to, {words[0], words[1], words[2], words[3]});
}

/// A tile of a matrix (row_count, width) from (row, column) on; by all threads.
template <half_product::direction Way>
__device__ __forceinline__ void stage_plane(half* to, const half* from, std::int64_t pitch, std::int64_t row, std::int64_t column,
                                            std::int64_t row_count, std::int64_t width) {
  using tile = product_tile<Way>;
  constexpr int parts = tile::width / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < tile::rows * parts; i += tile::threads) {
    const std::int64_t r = row + i / parts, c = column + i % parts * 8;
    stage_part(to + i / parts * tile::pitch + i % parts * 8, from + r * pitch + c, r < row_count ? width - c : 0);
  }
}

template <half_product::direction Way>
__global__ void __launch_bounds__(product_tile<Way>::threads, 1)
    tiled_product_kernel(half_product::shape s, two_halves x, const half* b, std::int64_t b_pitch, float* out, std::int64_t out_pitch) {
  using tile = product_tile<Way>;
  half* const memory = dynamic_shared<half>();
  const std::int64_t tiles_m = ceil_div(s.m, tile::tokens);
  const std::int64_t m0 = static_cast<std::int64_t>(blockIdx.x) % tiles_m * tile::tokens;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) / tiles_m * tile::columns;
  const std::int64_t steps = ceil_div(s.k, tile::depth);
  const int lane = lane_of_thread(), warp_m = warp_of_thread() / 4 * 64, warp_n = warp_of_thread() % 4 * 32;
  const auto stage = [&](std::int64_t step) {
    half* const to = memory + step % tile::stages * tile::stage;
    const std::int64_t k0 = step * tile::depth;
    if (step < steps && tile::restores) {
      stage_plane<Way>(to, x.high, x.pitch, k0, m0, s.k, s.m);
      stage_plane<Way>(to + tile::plane, x.low, x.pitch, k0, m0, s.k, s.m);
      stage_plane<Way>(to + 2 * tile::plane, b, b_pitch, k0, n0, s.k, s.n);
    } else if (step < steps) {
      stage_plane<Way>(to, x.high, x.pitch, m0, k0, s.m, s.k);
      stage_plane<Way>(to + tile::plane, x.low, x.pitch, m0, k0, s.m, s.k);
      stage_plane<Way>(to + 2 * tile::plane, b, b_pitch, n0, k0, s.n, s.k);
    }
    end_copies();
  };
  float sums[4][4][4] = {};  // (16 tokens, 8 columns, fragment)
  for (int i = 0; i + 1 < tile::stages; ++i) stage(i);
  const int row = lane % 8, one = lane / 8 % 2 * 8, two = lane / 16 * 8;  // of the four matrices that a lane names rows of
  for (std::int64_t step = 0; step < steps; ++step) {
    wait_copies<tile::stages - 2>();
    __syncthreads();  // the tile is there, and nobody reads the one that the next copies overwrite
    stage(step + tile::stages - 1);
    const half* const of = memory + step % tile::stages * tile::stage;
#pragma unroll
    for (int k = 0; k < tile::depth; k += 16) {
      unsigned right[2][4];  // two times 8 columns each
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const half* const at = of + 2 * tile::plane;
        const int n = warp_n + 16 * j;
        if constexpr (tile::restores) {
          load_transposed(right[j], at + (k + row + one) * tile::pitch + n + two);
        } else {
          load_matrices(right[j], at + (n + row + two) * tile::pitch + k + one);
        }
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const half* const at = of + part * tile::plane;
          const int m = warp_m + 16 * i;
          unsigned left[4];
          if constexpr (tile::restores) {
            load_transposed(left, at + (k + row + two) * tile::pitch + m + one);
          } else {
            load_matrices(left, at + (m + row + one) * tile::pitch + k + two);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) mma<half>(sums[i][j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  wait_copies<0>();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const std::int64_t m = m0 + warp_m + 16 * i + lane / 4 + f / 2 * 8, n = n0 + warp_n + 8 * j + lane % 4 * 2 + f % 2;
        if (m < s.m && n < s.n) out[tile::restores ? m * out_pitch + n : n * out_pitch + m] = sums[i][j][f];
      }
    }
  }
}

inline void tiled_product(void*, const device& exec, const half_product::shape& s, const two_halves& x, const half* b, std::int64_t b_pitch,
                          float* out, std::int64_t out_pitch) {
  constexpr auto project = half_product::direction::project, restore = half_product::direction::restore;
  using tile = product_tile<project>;
  const auto blocks = static_cast<unsigned>(ceil_div(s.m, tile::tokens) * ceil_div(s.n, tile::columns));
  if (s.way == project) {
    launch(exec, {dim3(blocks), tile::threads, tile::bytes}, tiled_product_kernel<project>, s, x, b, b_pitch, out, out_pitch);
  } else {
    launch(exec, {dim3(blocks), tile::threads, product_tile<restore>::bytes}, tiled_product_kernel<restore>, s, x, b, b_pitch, out,
           out_pitch);
  }
}

/// The product that needs no library.
///
/// exactness   sums in steps of 16, ascending in k; see mma
/// cost        reads x once for every 128 columns and b once for every 128 tokens; rows on multiples of 16 bytes are copied fastest
inline half_product tiled_products() { return {tiled_product, nullptr}; }

}  // namespace kvx
