#pragma once
// No reranking, on the device: of more candidates than are kept the first ones stay.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/rerank/cuda/choose.cuh>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/rerank/pass_through.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

inline constexpr int pass_threads = 256;

template <int Threads>
__global__ void __launch_bounds__(Threads) pass_through_kernel(device_batch batch, rerank_input in, rerank_output out) {
  __shared__ rerank_unit u;
  const std::int64_t unit = blockIdx.x;
  if (threadIdx.x == 0) u.read(batch, in, out, unit);
  __syncthreads();
  choose_all<Threads>(in, out, unit, u.count < 0 ? 0 : u.count < u.keep ? u.count : u.keep);
}

/// The first `keep` candidates of every unit of a step.
///
/// shapes      see rerank_input (ids, counts) and rerank_output; batch: items under any page ids
/// cost        one launch, a block a unit. Behind a search that proposes what is kept, its ids may be taken as they are
inline void rerank(const device& exec, const pass_through&, const device_batch& batch, const rerank_input& in, const rerank_output& out,
                   call_site where = call_site::here()) {
  require_range("rerank: units", out.units(), 0, INT32_MAX, where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(out.units())), .threads = pass_threads}, pass_through_kernel<pass_threads>, batch, in,
         out);
}

}  // namespace kvx
