#pragma once
// Sums of rows over the tokens of each chunk, keys turned back, on the device: what the mean of a text is made of.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/transform/cuda/turns.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int sum_threads = 128;

/// A feature of a chunk by a thread.
template <element E, int Threads>
__global__ void __launch_bounds__(Threads) sum_rows_kernel(span_rows<const E> rows, device_span_turns turns, std::int64_t features,
                                                           std::int64_t tokens, std::int64_t chunk_tokens, double* sums) {
  const std::int64_t blocks = ceil_div(features, Threads), chunk = blockIdx.x / blocks;
  const std::int64_t f = blockIdx.x % blocks * Threads + threadIdx.x;
  if (f >= features) return;
  const auto head = static_cast<std::int32_t>(f / rows.dim);
  const int d = static_cast<int>(f % rows.dim);
  const device_turns turn = turns.of(head);
  const std::int64_t first = chunk * chunk_tokens, left = tokens - first;
  const std::int64_t last = first + (left < chunk_tokens ? left : chunk_tokens);
  double sum = 0;
  for (std::int64_t t = first; t < last; ++t) {
    const E* const key = rows.row(t, head);
    sum += static_cast<double>(turned(turn, t, d, false, [&](int i) { return to_float(key[i]); }));
  }
  sums[chunk * features + f] = sum;
}

/// Sums over the tokens of chunks that follow each other.
///
/// shapes      rows of `features`, of tokens in chunks of chunk_tokens but the last; turns of the same tokens; sums (chunks, features)
/// exactness   in double, tokens ascending: the host's to the bit
/// cost        one launch, one read of the rows
template <element E>
void sum_rows(const device& exec, const span_rows<const E>& rows, const device_span_turns& turns, std::int64_t features,
              std::int64_t tokens, std::int64_t chunk_tokens, double* sums, call_site where = call_site::here()) {
  require(rows.dim > 0 && rows.heads > 0 && features % (std::int64_t{rows.heads} * rows.dim) == 0,
          "sum_rows: features are whole layers of heads", where);
  require_range("sum_rows: tokens of a chunk", chunk_tokens, 1, 1 << 20, where);
  require_range("sum_rows: position of the first token", rows.first, 0, INT32_MAX - tokens, where);
  launch(exec, {grid_of(ceil_div(tokens, chunk_tokens) * ceil_div(features, sum_threads), where), sum_threads},
         sum_rows_kernel<E, sum_threads>, rows, turns, features, tokens, chunk_tokens, sums);
}

}  // namespace kvx
