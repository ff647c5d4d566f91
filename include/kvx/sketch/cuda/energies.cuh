#pragma once
// Queries that are learned from, written down as they come: for each new token of a step where its energies go, if anywhere.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// The squares of a group's queries at one position, added up over its heads in double, ascending, rounded to bf16; by a block.
///
/// shapes      query(g, d) a float; energies (D)
template <int Threads, class Query>
__device__ __forceinline__ void write_energies(const Query& query, int group, int dim, bf16* energies) {
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += Threads) {
    double sum = 0;
    for (int g = 0; g < group; ++g) {
      const double x = static_cast<double>(query(g, d));
      sum += x * x;  // exact in double: fused or not is the same
    }
    energies[d] = round_to<bf16>(static_cast<float>(sum));
  }
}

template <int Threads, class T>
__global__ void __launch_bounds__(Threads, 4)
    observe_tokens_kernel(bf16* const* samples, std::int64_t learned_at, int heads, tensor_view<const T, 3> q) {
  __shared__ bf16* energies;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) / heads, head = static_cast<std::int64_t>(blockIdx.x) % heads;
  if (threadIdx.x == 0) energies = samples[row];
  __syncthreads();
  if (energies == nullptr) return;
  const int group = static_cast<int>(q.extents[1]) / heads, dim = static_cast<int>(q.extents[2]);
  write_energies<Threads>([&](int g, int d) { return to_float(*q.at(row, head * group + g, d)); }, group, dim,
                          energies + learned_at + head * dim);
}

/// Writes down the queries of the tokens that are learned from.
///
/// shapes      q (N, Q, D); samples (N) in device memory: null for a token that nothing is learned from, else where its energies lie, those
///             of this layer (H, D) from `learned_at` on
/// exactness   the host's bits
template <element T>
void observe_tokens(const device& exec, bf16* const* samples, std::int64_t learned_at, int heads, tensor_view<const T, 3> q) {
  constexpr int threads = 128;
  launch(exec, {.grid = dim3(static_cast<unsigned>(q.extents[0] * heads)), .threads = threads}, observe_tokens_kernel<threads, T>, samples,
         learned_at, heads, q);
}

}  // namespace kvx
