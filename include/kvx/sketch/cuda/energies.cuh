#pragma once
// Queries that are learned from, written down as they come: for each new token of a step where its energies go, if anywhere.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/sketch/query_energies.hpp>

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

template <int Threads, class T>
__global__ void __launch_bounds__(Threads, 4)
    observe_energies_kernel(energy_column column, int heads, device_batch batch, tensor_view<const T, 3> q) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) / heads, head = static_cast<std::int64_t>(blockIdx.x) % heads;
  const batch_token token = token_of_block(batch, row);
  if (token.query < 0 || !is_learned_from(token.position())) return;
  const int group = static_cast<int>(q.extents[1]) / heads;
  write_energies<Threads>([&](int g, int d) { return to_float(*q.at(row, head * group + g, d)); }, group, column.dim,
                          column.sample(token.item.pages, head, token.position()));
}

/// Writes down the queries of the positions that are learned from, in a column beside the rows.
///
/// shapes      q (N, Q, D); batch: items under the page ids of the columns
/// exactness   the host's bits
template <element T>
void observe_energies(const device& exec, const energy_column& column, const device_batch& batch, tensor_view<const T, 3> q) {
  constexpr int threads = 128;
  launch(exec, {.grid = dim3(static_cast<unsigned>(batch.tokens * column.at.heads)), .threads = threads},
         observe_energies_kernel<threads, T>, column, column.at.heads, batch, q);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) forget_energies_kernel(energy_column column, device_batch batch) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Threads + threadIdx.x, token = i / column.at.heads;
  if (token >= batch.tokens) return;
  const batch_item& item = batch.items[batch.entry_of[token]];
  const std::int64_t position = item.length - item.queries + token - item.first;
  if (is_learned_from(position)) *column.sample(item.pages, i % column.at.heads, position) = round_to<bf16>(quiet_nan);
}

/// Nothing is known of the queries of the batch's new tokens: what lay at their positions before belongs to nobody.
inline void forget_energies(const device& exec, const energy_column& column, const device_batch& batch) {
  constexpr int threads = 128;
  launch(exec, {.grid = dim3(static_cast<unsigned>(ceil_div(batch.tokens * column.at.heads, threads))), .threads = threads},
         forget_energies_kernel<threads>, column, batch);
}

}  // namespace kvx
