#pragma once
// 2^x in one instruction, for softmax weights.

#include <cuda_runtime.h>

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace kvx {

/// 2^x.
///
/// exactness   within 2 units in the last place on devices (ex2.approx), results below 2^-126 are 0: for weights, not for decisions
/// errors      NaN gives NaN, -inf gives 0, +inf gives +inf
__device__ __forceinline__ float power_of_two(float x) {
#if defined(__CUDACC__)
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

}  // namespace kvx
