#pragma once
// Rows on their way from global to shared memory: whole tiles, each warp its own rows, a row over the lanes of a warp.

#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/operands.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/backend/cuda/async_copy.cuh>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Addresses of a tile's rows, each in a lane of the warp that will copy the row: looked up one tile ahead, so that nobody waits for them.
///
/// what        warp w copies rows w R .. w R + R - 1, R = keys / warps; lane i < R has the address of row w R + i
template <int Threads, element E, class Source>
__device__ row_address<E> locate_rows(const tile_memory& m, const Source& source, const key_places& places, std::int64_t first,
                                      std::int64_t last) {
  const int each = m.keys / (Threads / warp_lanes), lane = lane_of_thread();
  const std::int64_t place = first + warp_of_thread() * each + lane;
  return lane < each && place < last ? source.at(places, place) : row_address<E>{};
}

/// Eight components of a row, of which `left` exist, to one or more planes. What does not exist becomes 0.
template <element E>
__device__ __forceinline__ void stage_part(typename operand_of<E>::type* to, int plane, const E* from, int left) {
  if constexpr (operand_of<E>::parts == 1) {
    if (left >= 8 && on_16(from)) return begin_copy_16(to, from);
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = 2 * i < left ? from[2 * i].bits : 0u;
      words[i] |= 2 * i + 1 < left ? static_cast<unsigned>(from[2 * i + 1].bits) << 16 : 0u;
    }
    store_16(to, {words[0], words[1], words[2], words[3]});
  } else {
    float x[8];
    if (left >= 8 && on_16(from)) {
      const uint4 low = load_16(from), high = load_16(from + 4);
      const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = __builtin_bit_cast(float, words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = i < left ? from[i] : 0.0f;
    }
    constexpr int parts = operand_of<E>::parts;
    unsigned words[4][parts];
#pragma unroll
    for (int i = 0; i < 4; ++i) split<typename operand_of<E>::type>(x[2 * i], x[2 * i + 1], words[i]);
#pragma unroll
    for (int p = 0; p < parts; ++p) store_16(to + p * plane, {words[0][p], words[1][p], words[2][p], words[3][p]});
  }
}

/// Begins to copy `n` rows of a tile; values of rows behind them, up to a multiple of 16, become 0, since their weight is 0.
///
/// shapes      keys (planes, m.keys, key_pitch) at K and values (planes, m.keys, value_pitch) at V of stage `stage`
/// cost        each component is read once, 16 bytes at once where a row lies on a multiple of 16
template <int Threads, element E>
__device__ void stage_rows(const tile_memory& m, std::byte* shared, int stage, const row_address<E>& mine, std::int64_t n, int key_dim,
                           int value_dim) {
  using O = typename operand_of<E>::type;
  O* const keys = reinterpret_cast<O*>(shared) + m.keys_at + stage * m.key_stage;        // (parts, keys, key_pitch)
  O* const values = reinterpret_cast<O*>(shared) + m.values_at + stage * m.value_stage;  // (parts, keys, value_pitch)
  const int each = m.keys / (Threads / warp_lanes), lane = lane_of_thread();
  const int key_parts = (key_dim + 7) / 8, all_parts = key_parts + (value_dim + 7) / 8;
  for (int i = 0; i < each; ++i) {
    const int row = warp_of_thread() * each + i;
    const auto* const key =
        reinterpret_cast<const E*>(__shfl_sync(all_lanes, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(mine.key)), i));
    const auto* const value = reinterpret_cast<const E*>(
        __shfl_sync(all_lanes, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(mine.value)), i));
    if (row < n) {
      for (int c = lane; c < all_parts; c += warp_lanes) {
        if (c < key_parts) {
          stage_part<E>(keys + row * m.key_pitch + c * 8, m.key_plane, key + c * 8, key_dim - c * 8);
        } else {
          const int d = (c - key_parts) * 8;
          stage_part<E>(values + row * m.value_pitch + d, m.value_plane, value + d, value_dim - d);
        }
      }
    } else if (row < (n + 15) / 16 * 16) {
      for (int c = lane; c < operand_of<E>::parts * m.value_pitch / 8; c += warp_lanes) {
        const int per_plane = m.value_pitch / 8;
        store_16(values + c / per_plane * m.value_plane + row * m.value_pitch + c % per_plane * 8, {0, 0, 0, 0});
      }
    }
  }
}

/// Components of keys between D and the depth of the products are 0 in every stage; once a block, before the first tile.
template <int Threads, element E>
__device__ void clear_key_padding(const tile_memory& m, std::byte* shared, int key_dim) {
  using O = typename operand_of<E>::type;
  O* const keys = reinterpret_cast<O*>(shared) + m.keys_at;                              // (stages, parts, keys, key_pitch)
  const int used = (key_dim + 7) / 8, unused = m.depth() / 8 - used;
  const int rows = m.stages * operand_of<E>::parts * m.keys;
  for (int i = static_cast<int>(threadIdx.x); i < rows * unused; i += Threads)
    store_16(keys + i / unused * m.key_pitch + (used + i % unused) * 8, {0, 0, 0, 0});
}

}  // namespace kvx
