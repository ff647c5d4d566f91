#pragma once
// The metric of a block's packing on the device, from the energies that its sequence was asked with.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/index/bisection.hpp>
#include <kvx/index/query_metric.hpp>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Which samples of a metric are finite.
struct seen_samples {
  static constexpr int most = static_cast<int>(metric_tokens / learning_stride);
  std::int32_t seen[most];
};

/// Mean energies of the learned positions [from, to), by one block of threads: see mean_energies.
///
/// shapes      pages: from logical page `first_page` on; at most metric_tokens positions; sums, means (D) in shared memory
/// returns     how many samples were seen, in every thread; means are undefined without one
/// exactness   the bits of mean_energies
template <int Threads>
__device__ int mean_energies_of_block(const energy_column& column, const std::int32_t* pages, std::int64_t first_page, std::int64_t head,
                                      std::int64_t from, std::int64_t to, const rope_pairs& pairs, seen_samples& s, double* sums,
                                      float* means) {
  const std::int64_t first = learned_positions(from);
  const int samples = static_cast<int>(learned_positions(to) - first);
  const auto sample = [&](int i) { return column.sample(pages, head, learned_position(first + i) - first_page * column.page_tokens); };
  for (int i = warp_of_thread(); i < samples; i += Threads / warp_lanes) {
    const bf16* const energies = sample(i);
    bool finite = true;
    for (int d = lane_of_thread(); d < column.dim; d += warp_lanes) finite = finite && to_float(energies[d]) - to_float(energies[d]) == 0;
    const int all = __all_sync(all_lanes, finite ? 1 : 0);
    if (lane_of_thread() == 0) s.seen[i] = all != 0 ? 1 : 0;
  }
  __syncthreads();
  int count = 0;
  for (int i = 0; i < samples; ++i) count += s.seen[i];
  for (int d = static_cast<int>(threadIdx.x); d < column.dim; d += Threads) {
    double sum = 0;
    for (int i = 0; i < samples; ++i) {
      if (s.seen[i] != 0) sum += static_cast<double>(to_float(sample(i)[d]));
    }
    sums[d] = sum / static_cast<double>(count);
  }
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < column.dim; d += Threads)
    means[d] = static_cast<float>((sums[d] + sums[pairs.partner(d)]) / 2);
  __syncthreads();
  return count;
}

}  // namespace kvx
