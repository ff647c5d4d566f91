#pragma once
// Of the children of a beam those that composite indices come to first, on the device.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/double_root.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/projections.hpp>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Threads of a block that narrows the children of level 0.
inline constexpr int narrow_threads = 512;

/// Where the queries of one unit stand on all lines, by one block of threads, which sees them behind its next barrier.
template <int Threads, class Call>
__device__ void place_queries(const Call& call, std::int64_t unit) {
  const int dim = call.rows.key_dim, lines = lines_of(call.index), count = call.group * lines;
  float* const asked = call.to.tree.asked + unit * count;  // (G, lines)
  for (int turn = 0; turn < count; turn += Threads / fixed_dot_lanes) {
    const int i = turn + static_cast<int>(threadIdx.x) / fixed_dot_lanes, here = i < count ? i : count - 1;
    const float* const query = call.plain + (unit * call.group + here / lines) * dim;
    const auto x = [&](int d) { return query[d]; };
    const double dot = fixed_dot_of_lanes(
        x, [&](int d) { return line_component(call.index.seed, here % lines, d); }, dim);
    const double square = fixed_dot_of_lanes(x, x, dim);
    if (i < count && threadIdx.x % fixed_dot_lanes == 0) asked[i] = place_of_query(dot, square, double_root{});
  }
}

/// Calls mark(i) for the children that one of the composite indices has among its `nearest` ones, equal ones by position, by one block of
/// threads: in one thread for each index that has it.
///
/// shapes      children (count), ascending; priorities (count): room; all threads call, behind a barrier that shows them the children
/// exactness   the host's: places are rounded from sums in double
template <int Threads, class Call, class Mark>
__device__ void mark_nearest(const Call& call, std::int64_t unit, const page_zone& zone, const std::int32_t* children, std::int64_t count,
                             float* priorities, top_k_scratch<Threads>& scratch, const Mark& mark) {
  const int P = call.page_tokens, lines = lines_of(call.index), m = call.index.simple;
  const float* const asked = call.to.tree.asked + unit * call.group * lines;
  for (int i = 0; i < call.index.composite; ++i) {
    for (std::int64_t t = threadIdx.x; t < count; t += Threads) {
      const std::int64_t token = children[t];
      const float* const places = call.places_of(zone.pages[token / P], unit % call.heads, token % P);
      priorities[t] = -priority_of(places + i * m, m, asked + i * m, lines, call.group);
    }
    __syncthreads();
    block_top_k(priorities, count, call.how.nearest, scratch, [&](std::int64_t, std::int64_t t) { mark(t); });
  }
}

/// Leaves of the children of level 0 that are marked those that composite indices propose.
template <int Threads, class Call>
__global__ void __launch_bounds__(Threads) narrow_children_kernel(Call call) {
  __shared__ block_scratch<int, Threads> sums;
  __shared__ top_k_scratch<Threads> scratch;
  __shared__ page_zone zone;
  const std::int64_t unit = blockIdx.x;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  if (!zone.is_searched()) return;
  const beam_arrays& tree = call.to.tree;
  unsigned* const chosen = tree.chosen + unit * tree.mark_words;
  std::int32_t* const children = tree.children + unit * tree.child_pitch;
  const std::int64_t first = zone.first * call.page_tokens, words = ceil_div(zone.count * call.page_tokens, 32);
  std::int64_t count = 0;
  for (std::int64_t turn = 0; turn < words; turn += Threads) {
    const std::int64_t w = turn + threadIdx.x;
    unsigned marked = w < words ? chosen[w] : 0u;
    int here = 0;
    std::int64_t at = count + block_exclusive_sum<Threads>(__popc(marked), sums, here);
    for (; marked != 0; marked &= marked - 1)
      children[at++] = static_cast<std::int32_t>(first + 32 * w + __ffs(static_cast<int>(marked)) - 1);
    count += here;
  }
  if (count <= call.how.nearest) return;
  for (std::int64_t w = threadIdx.x; w < words; w += Threads) chosen[w] = 0;
  __syncthreads();
  mark_nearest(call, unit, zone, children, count, tree.priorities + unit * tree.child_pitch, scratch, [&](std::int64_t t) {
    const std::int64_t i = children[t] - first;
    atomicOr(&chosen[i / 32], 1u << i % 32);
  });
}

}  // namespace kvx
