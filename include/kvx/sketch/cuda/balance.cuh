#pragma once
// The balance on the device: the diagonals that follow from the keys and from the energies of the queries that are learned from.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/balance.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What one sequence has learned from when its balance is fixed.
///
/// pages       page table of the rows
/// energies    (samples) those of each position, (layers, H, D); null or not finite where a layer's queries were not seen
/// diagonals   (layers, H, D), to be written
/// seen        (layers, H), to be written: whether any query was; may be null
struct balance_to_fix {
  const std::int32_t* pages = nullptr;
  const bf16* const* energies = nullptr;
  std::int64_t samples = 0;
  float* diagonals = nullptr;
  std::uint8_t* seen = nullptr;
};

/// Threads of a block, rows that it looks at together, channels of a thread.
inline constexpr int balance_threads = 256, balance_rows = 16, balance_channels = (576 + balance_threads - 1) / balance_threads;

struct balance_scratch {
  float rows[balance_rows][576];
  int finite[balance_rows];
  double variances[576];
  double energies[576];
  double least_variance;
  double least_energy;
};

/// Adds rows without NaN and infinity to the moments of each thread's channels, row after row.
///
/// row_of      (i) row i, or null
/// returns     how many rows were added, in every thread
template <int Threads, class RowOf, class Add>
__device__ __forceinline__ std::int64_t add_finite_rows(std::int64_t count, int dim, const RowOf& row_of, balance_scratch& s,
                                                        const Add& add) {
  std::int64_t added = 0;
  for (std::int64_t first = 0; first < count; first += balance_rows) {
    const int n = count - first < balance_rows ? static_cast<int>(count - first) : balance_rows;
    for (int i = warp_of_thread(); i < n; i += Threads / warp_lanes) {
      const auto* const row = row_of(first + i);
      bool finite = row != nullptr;
      for (int d = lane_of_thread(); row != nullptr && d < dim; d += warp_lanes) {
        const float x = to_float(row[d]);
        s.rows[i][d] = x;
        finite = finite && is_finite(x);
      }
      const int all = __all_sync(all_lanes, finite ? 1 : 0);
      if (lane_of_thread() == 0) s.finite[i] = all;
    }
    __syncthreads();
    for (int i = 0; i < n; ++i) {
      if (s.finite[i] == 0) continue;
      ++added;
#pragma unroll
      for (int c = 0; c < balance_channels; ++c) {
        const int d = static_cast<int>(threadIdx.x) + c * Threads;
        if (d < dim) add(c, static_cast<double>(s.rows[i][d]));
      }
    }
    __syncthreads();
  }
  return added;
}

/// One KV head of one sequence: see balance_moments.
template <int Threads, class E>
__global__ void __launch_bounds__(Threads) fix_balances_kernel(row_view<const E> rows, const balance_to_fix* sequences, std::int64_t begin,
                                                               std::int64_t end, rope_pairs pairs, int layer) {
  __shared__ balance_scratch s;
  const balance_to_fix of = sequences[blockIdx.x / static_cast<unsigned>(rows.heads)];
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(rows.heads)), dim = rows.key_dim, P = rows.page_tokens;
  const std::int64_t at = (std::int64_t{layer} * rows.heads + head) * dim;
  const int tid = static_cast<int>(threadIdx.x);
  double sums[balance_channels] = {}, squares[balance_channels] = {}, energies[balance_channels] = {};
  const auto key_of = [&](std::int64_t i) { return rows.key.at(of.pages[(begin + i) / P], head, (begin + i) % P); };
  const std::int64_t keys = add_finite_rows<Threads>(end - begin, dim, key_of, s, [&](int c, double k) {
    sums[c] += k;
    squares[c] += k * k;  // exact in double
  });
  const auto sample_of = [&](std::int64_t i) -> const bf16* { return of.energies[i] != nullptr ? of.energies[i] + at : nullptr; };
  const std::int64_t queries = add_finite_rows<Threads>(of.samples, dim, sample_of, s, [&](int c, double e) { energies[c] += e; });
  if (tid == 0 && of.seen != nullptr) of.seen[std::int64_t{layer} * rows.heads + head] = queries > 0 ? 1 : 0;
#pragma unroll
  for (int c = 0; c < balance_channels; ++c) {
    const int d = tid + c * Threads;
    if (d >= dim) continue;
    s.variances[d] = channel_variance(sums[c], squares[c], static_cast<double>(keys));
    s.energies[d] = energies[c] / static_cast<double>(queries);
  }
  __syncthreads();
  if (tid == 0) {
    double variance = 0, energy = 0;
    for (int d = 0; d < dim; ++d) {
      variance += s.variances[d];
      energy += s.energies[d];
    }
    s.least_variance = least_moment(variance, dim);
    s.least_energy = least_moment(energy, dim);
  }
  __syncthreads();
  const bool learned = keys >= 2 && queries > 0 && s.least_variance > 0 && s.least_energy > 0;
  for (int d = tid; d < dim; d += Threads) {
    const int partner = pairs.partner(d);
    const double ratio =
        balance_ratio(s.energies[d], s.energies[partner], s.variances[d], s.variances[partner], s.least_energy, s.least_variance);
    of.diagonals[at + d] = learned ? static_cast<float>(sqrt(sqrt(ratio))) : 1.0f;
  }
}

/// Fixes the balances of sequences in one layer, from their keys at [begin, end) and the energies of their queries.
///
/// shapes      sequences (count) in device memory; layer: among those that retrieve
/// exactness   the bits of balance_moments: sums in double in the order of the positions
/// cost        one launch, a block a sequence and head; once in the life of a sequence
/// errors      usage_error: a dim outside 1..576. See balance_moments for what is left out and when the balance is 1
template <element E>
void fix_balances(const device& exec, const row_view<const E>& rows, const balance_to_fix* sequences, std::int64_t count,
                  std::int64_t begin, std::int64_t end, const rope_pairs& pairs, int layer, call_site where = call_site::here()) {
  require_range("fix_balances: key_dim", rows.key_dim, 1, 576, where);
  require_range("fix_balances: KV heads", rows.heads, 1, INT32_MAX, where);
  require_range("fix_balances: sequences", count, 0, INT32_MAX / rows.heads, where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(count * rows.heads)), .threads = balance_threads},
         fix_balances_kernel<balance_threads, E>, rows, sequences, begin, end, pairs, layer);
}

}  // namespace kvx
