#pragma once
// One row from one place to another by the lanes of a warp, 16 bytes at once where both lie on multiples of 16.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/vector_access.cuh>
#include <kvx/core/element.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

namespace kvx {

inline constexpr int lane_components = 8;  ///< components that a lane takes at once

/// Eight components that begin on a multiple of 16 bytes.
__device__ __forceinline__ void load_part(const float* from, float (&x)[lane_components]) {
  const uint4 low = load_16(from), high = load_16(from + 4);
  const unsigned words[lane_components] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < lane_components; ++i) x[i] = __builtin_bit_cast(float, words[i]);
}

template <class E>
  requires(sizeof(E) == 2)
__device__ __forceinline__ void load_part(const E* from, float (&x)[lane_components]) {
  const uint4 all = load_16(from);
  const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < lane_components; ++i) x[i] = to_float(E{static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16)});
}

__device__ __forceinline__ void store_part(float* to, const float (&x)[lane_components]) {
  unsigned words[lane_components];
#pragma unroll
  for (int i = 0; i < lane_components; ++i) words[i] = __builtin_bit_cast(unsigned, x[i]);
  store_16(to, {words[0], words[1], words[2], words[3]});
  store_16(to + 4, {words[4], words[5], words[6], words[7]});
}

template <class E>
  requires(sizeof(E) == 2)
__device__ __forceinline__ void store_part(E* to, const float (&x)[lane_components]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = round_to<E>(x[2 * i]).bits | static_cast<unsigned>(round_to<E>(x[2 * i + 1]).bits) << 16;
  store_16(to, {words[0], words[1], words[2], words[3]});
}

/// to[i] <- from[i * stride], rounded to nearest even where E is narrower. The lanes of a warp share the row.
template <element E, element T>
__device__ __forceinline__ void convert_row(E* to, const T* from, int n, std::int64_t stride, int lane) {
  int done = 0;
  if (stride == 1 && on_16(to) && on_16(from)) {
    if constexpr (std::same_as<E, T>) {
      constexpr int part = 16 / static_cast<int>(sizeof(E));
      done = n / part * part;
      for (int i = lane * part; i < done; i += warp_lanes * part) store_16(to + i, load_16(from + i));
    } else {
      done = n / lane_components * lane_components;
      for (int i = lane * lane_components; i < done; i += warp_lanes * lane_components) {
        float x[lane_components];
        load_part(from + i, x);
        store_part(to + i, x);
      }
    }
  }
  for (int i = done + lane; i < n; i += warp_lanes) {
    if constexpr (std::same_as<E, T>) {
      to[i] = from[i * stride];
    } else {
      to[i] = round_to<E>(to_float(from[i * stride]));
    }
  }
}

}  // namespace kvx
