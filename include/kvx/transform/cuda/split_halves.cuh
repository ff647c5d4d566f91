#pragma once
// Floats as sums of two halves with a power of two for every token, so that a product of halves has the precision of floats.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/transform/half_product.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// The power of two that brings the largest of some magnitudes to [2^14, 2^15), as an exponent: largest * 2^-e; within -112..112, where
/// both powers are normal.
KVX_HD constexpr int exponent_of_token(float largest) {
  const int e = static_cast<int>(__builtin_bit_cast(std::uint32_t, largest) >> 23 & 255) - 127 - 14;
  return e < -112 ? -112 : e > 112 ? 112 : e;
}
KVX_HD constexpr float power_of_exponent(int e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); }
static_assert(exponent_of_token(1.5f) == -14 && exponent_of_token(70000) == 2 && power_of_exponent(-14) == 0x1p-14f);

/// Two halves of x / 2^e; zeros where it is no number.
///
/// exactness   22 bits of x; what is lost lies below 2^-39 of the token's largest
__device__ __forceinline__ void put_halves(const two_halves& to, std::int64_t at, float x, int e) {
  const float scaled = x * power_of_exponent(-e);
  const half high = scaled - scaled == 0 ? round_to<half>(scaled) : half{};
  to.high[at] = high;
  to.low[at] = scaled - scaled == 0 ? round_to<half>(scaled - to_float(high)) : half{};
}

inline constexpr int split_threads = 256;

template <int Threads>
__global__ void __launch_bounds__(Threads)
    split_columns_kernel(const float* x, std::int64_t pitch, std::int64_t rows, std::int64_t tokens, two_halves to, float* factors) {
  constexpr int warps = Threads / warp_lanes;
  __shared__ float maxima[warps][warp_lanes];
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * warp_lanes + lane;
  const bool there = t < tokens;
  float largest = 0;
#pragma unroll 4
  for (std::int64_t c = warp; c < rows; c += warps) {
    const float value = there ? x[c * pitch + t] : 0.0f, magnitude = value < 0 ? -value : value;
    largest = magnitude > largest ? magnitude : largest;
  }
  maxima[warp][lane] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < warps; ++w) largest = maxima[w][lane] > largest ? maxima[w][lane] : largest;
  const int e = exponent_of_token(largest);
  if (there && warp == 0) factors[t] = power_of_exponent(e);
#pragma unroll 4
  for (std::int64_t c = warp; c < rows; c += warps) {
    if (t < to.pitch) put_halves(to, c * to.pitch + t, there ? x[c * pitch + t] : 0.0f, e);
  }
}

/// Columns of a matrix of floats, one a token.
///
/// shapes      x (rows, tokens) with `pitch` floats a row; to (rows, to.pitch), the pitch at least the tokens: zeros beyond them; factors
///             (tokens): x = factor * (high + low)
/// cost        one launch; x is read twice
inline void split_columns(const device& exec, const float* x, std::int64_t pitch, std::int64_t rows, std::int64_t tokens,
                          const two_halves& to, float* factors) {
  launch(exec, {dim3(static_cast<unsigned>(ceil_div(to.pitch, warp_lanes))), split_threads}, split_columns_kernel<split_threads>, x, pitch,
         rows, tokens, to, factors);
}

}  // namespace kvx
