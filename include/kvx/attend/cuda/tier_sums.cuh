#pragma once
// Weighted sums of coded values, in rotated space, and of page means: four components of a row to a thread, rows shared out over the
// block.

#include <kvx/attend/cuda/tier_tile.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/element.hpp>
#include <kvx/sketch/cuda/value_code.cuh>
#include <kvx/sketch/value_code.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// How the threads of a block lie over rows of `dim` components.
///
/// quads       of a row; lanes: threads of a row, a power of two; rows: that are read at once
/// quad, row   of the calling thread
struct quad_grid {
  int quads, lanes, rows, quad, row;

  __device__ __forceinline__ quad_grid(int dim, int threads) : quads((dim + 3) / 4), lanes(1) {
    while (lanes < quads) lanes *= 2;
    rows = threads / lanes;
    quad = static_cast<int>(threadIdx.x) % lanes;
    row = static_cast<int>(threadIdx.x) / lanes;
  }
  __device__ __forceinline__ bool active() const { return quad < quads; }
};

/// Sums of four components for every head of a block.
struct quad_sums {
  float of[tier_heads][4] = {};

  __device__ __forceinline__ void scale(const float* factors) {
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) of[h][j] *= factors[h];
    }
  }
  __device__ __forceinline__ void add(const float (&weights)[tier_heads], const float (&x)[4]) {
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) of[h][j] += weights[h] * x[j];
    }
  }

  /// Brings the rows' sums together in their order: finish(head, component, sum). All threads call.   all (rows, heads, 4 lanes)
  template <int Threads, class Finish>
  __device__ __forceinline__ void finish(const quad_grid& grid, int dim, float* all, const Finish& finish) const {
    const int width = 4 * grid.lanes;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) all[(grid.row * tier_heads + h) * width + 4 * grid.quad + j] = of[h][j];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < tier_heads * dim; i += Threads) {
      const int h = i / dim, d = i % dim;
      float sum = 0;
#pragma unroll 4
      for (int row = 0; row < grid.rows; ++row) sum += all[(row * tier_heads + h) * width + d];
      finish(h, d, sum);
    }
  }
};

/// Floats that quad_sums::finish needs, whatever the dim.
inline constexpr int quad_floats = tier_threads * tier_heads * 4;

/// Adds the coded values of the taken members.
///
/// levels      (16) of each field, in shared memory
/// first_page  page of the sequence that is the tile's first
template <int Bits>
__device__ __forceinline__ void add_coded_values(const quad_grid& grid, const tier_tile& tile, int taken, std::int64_t first_page,
                                                 int page_shift, const coded_value_columns& columns, std::int64_t head, int dim,
                                                 const float* levels, quad_sums& sums) {
  if (!grid.active()) return;
  const std::int64_t row_bytes = value_row_bytes(Bits, dim);
#pragma unroll 2
  for (int i = grid.row; i < taken; i += grid.rows) {
    const int t = tile.taken[i];
    const std::int32_t id = tile.members[t];
    const std::int32_t slot = id & ((1 << page_shift) - 1);
    const page_values<false> page = values_of(columns, tile.ids[(id >> page_shift) - first_page], head);
    const std::uint8_t* const code = page.codes + slot * row_bytes + grid.quad * (Bits / 2);
    const std::uint32_t fields = Bits == 4 ? *reinterpret_cast<const std::uint16_t*>(code) : *code;
    const float scale = to_float(page.scales[slot]);
    float weights[tier_heads], x[4];
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) weights[h] = scale * tile.weights[h][t];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = levels[fields >> j * Bits & ((1u << Bits) - 1)];
    sums.add(weights, x);
  }
}

/// Adds the means of n pages, each as often as its tail and its coded members weigh; pages that weigh nothing are not read.
__device__ __forceinline__ void add_page_means(const quad_grid& grid, const tier_tile& tile, int n, const coded_value_columns& columns,
                                               std::int64_t head, int dim, quad_sums& sums) {
  if (!grid.active()) return;
  const int first = 4 * grid.quad, left = dim - first;
#pragma unroll 1
  for (int p = grid.row; p < n; p += grid.rows) {
    float weights[tier_heads], x[4];
    bool weighs = false;
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
      weights[h] = tile.tails[h][p];
      weighs = weighs || weights[h] != 0;
    }
    if (!weighs) continue;
    const bf16* const mean = values_of(columns, tile.ids[p], head).means + first;
    if (left >= 4) {  // blocks of columns begin on multiples of 64 bytes
      const uint2 v = *reinterpret_cast<const uint2*>(mean);
      const std::uint32_t words[2] = {v.x, v.y};
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = to_float(bf16{static_cast<std::uint16_t>(words[j / 2] >> 16 * (j % 2) & 0xffffu)});
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = j < left ? to_float(mean[j]) : 0.0f;
    }
    sums.add(weights, x);
  }
}

}  // namespace kvx
