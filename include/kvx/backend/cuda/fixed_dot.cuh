#pragma once
// fixed_dot on the device: eight lanes are its eight sums.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/fixed_dot.hpp>

#include <cuda_runtime.h>

namespace kvx {

/// a . b by fixed_dot_lanes lanes that follow each other; all lanes of the warp take part, and each gets the result of its eight.
///
/// shapes      a(d), b(d): components 0 <= d < dim, floats
/// exactness   the bits of fixed_dot
template <class A, class B>
__device__ __forceinline__ double fixed_dot_of_lanes(const A& a, const B& b, int dim) {
  double sum = 0;
  for (int d = lane_of_thread() % fixed_dot_lanes; d < dim; d += fixed_dot_lanes)
    sum += static_cast<double>(a(d)) * static_cast<double>(b(d));
  return warp_sum<fixed_dot_lanes>(sum);  // (0 + 4) + (2 + 6), then (1 + 5) + (3 + 7)
}

}  // namespace kvx
