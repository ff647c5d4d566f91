#pragma once
// Weighted sums of coded values, in rotated space, and of page means: eight components of a row to a thread, rows shared out over the
// block.

#include <kvx/attend/cuda/tier_tile.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/core/element.hpp>
#include <kvx/sketch/cuda/value_code.cuh>
#include <kvx/sketch/value_code.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// How the threads of a block lie over rows of `dim` components.
///
/// octets      of a row; lanes: threads of a row, a power of two; rows: that are read at once
/// octet, row  of the calling thread
struct octet_grid {
  int octets, lanes, rows, octet, row;

  __device__ __forceinline__ octet_grid(int dim, int threads) : octets((dim + 7) / 8), lanes(1) {
    while (lanes < octets) lanes *= 2;
    rows = threads / lanes;
    octet = static_cast<int>(threadIdx.x) % lanes;
    row = static_cast<int>(threadIdx.x) / lanes;
  }
  __device__ __forceinline__ bool active() const { return octet < octets; }
};

/// Sums of eight components for every head of a block.
struct octet_sums {
  float of[tier_heads][8] = {};

  __device__ __forceinline__ void scale(const float* factors) {
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 8; ++j) of[h][j] *= factors[h];
    }
  }
  __device__ __forceinline__ void add(const float (&weights)[tier_heads], const float (&x)[8]) {
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 8; ++j) of[h][j] += weights[h] * x[j];
    }
  }

  /// Brings the rows' sums together in their order: finish(head, component, sum). All threads call.   all (rows, heads, 8 lanes)
  template <int Threads, class Finish>
  __device__ __forceinline__ void finish(const octet_grid& grid, int dim, float* all, const Finish& finish) const {
    const int width = 8 * grid.lanes;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
#pragma unroll
      for (int j = 0; j < 8; ++j) all[(grid.row * tier_heads + h) * width + 8 * grid.octet + j] = of[h][j];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < tier_heads * dim; i += Threads) {
      const int h = i / dim, d = i % dim;
      float sum = 0;
      for (int row = 0; row < grid.rows; ++row) sum += all[(row * tier_heads + h) * width + d];
      finish(h, d, sum);
    }
  }
};

/// Floats that octet_sums::finish needs, whatever the dim.
inline constexpr int octet_floats = tier_threads * tier_heads * 8;

/// Adds the coded values of the taken members.
///
/// levels      (16) of each field, in shared memory
/// first_page  page of the sequence that is the tile's first
template <int Bits>
__device__ __forceinline__ void add_coded_values(const octet_grid& grid, const tier_tile& tile, int taken, std::int64_t first_page,
                                                 int page_shift, const coded_value_columns& columns, std::int64_t head, int dim,
                                                 const float* levels, octet_sums& sums) {
  if (!grid.active()) return;
  const std::int64_t row_bytes = value_row_bytes(Bits, dim);
#pragma unroll 2
  for (int i = grid.row; i < taken; i += grid.rows) {
    const int t = tile.taken[i];
    const std::int32_t id = tile.members[t];
    const std::int32_t slot = id & ((1 << page_shift) - 1);
    const page_values<false> page = values_of(columns, tile.ids[(id >> page_shift) - first_page], head);
    const std::uint8_t* const code = page.codes + slot * row_bytes + grid.octet * Bits;
    const std::uint32_t fields = Bits == 4 ? *reinterpret_cast<const std::uint32_t*>(code) : *reinterpret_cast<const std::uint16_t*>(code);
    const float scale = to_float(page.scales[slot]);
    float weights[tier_heads], x[8];
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) weights[h] = scale * tile.weights[h * tier_tile::pitch + t];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = levels[fields >> j * Bits & ((1u << Bits) - 1)];
    sums.add(weights, x);
  }
}

/// Adds the means of n pages, each as often as its tail and its coded members weigh; pages that weigh nothing are not read.
__device__ __forceinline__ void add_page_means(const octet_grid& grid, const tier_tile& tile, int n, const coded_value_columns& columns,
                                               std::int64_t head, int dim, octet_sums& sums) {
  if (!grid.active()) return;
  const int first = 8 * grid.octet, left = dim - first;
  for (int p = grid.row; p < n; p += grid.rows) {
    float weights[tier_heads], x[8];
    bool weighs = false;
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
      weights[h] = tile.tails[h * tier_tile::page_pitch + p];
      weighs = weighs || weights[h] != 0;
    }
    if (!weighs) continue;
    const bf16* const mean = values_of(columns, tile.ids[p], head).means + first;
    if (left >= 8) {  // blocks of columns begin on multiples of 64 bytes
      const uint4 v = load_16(mean);
      const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = to_float(bf16{static_cast<std::uint16_t>(words[j / 2] >> 16 * (j % 2) & 0xffffu)});
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = j < left ? to_float(mean[j]) : 0.0f;
    }
    sums.add(weights, x);
  }
}

}  // namespace kvx
