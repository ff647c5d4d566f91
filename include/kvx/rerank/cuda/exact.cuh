#pragma once
// Reranking by true logits on the device: eight lanes a row; the last block of a unit chooses the best.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/rerank/cuda/choose.cuh>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/rerank/exact.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/top_k.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads and candidates of a block: eight lanes read a row.
inline constexpr int exact_threads = 512, exact_candidates = 256;

template <class E, class Far>
struct exact_arguments {
  group_rule rule;
  device_batch batch;
  row_view<const E> rows;
  Far far;
  rerank_input in;
  rerank_output out;
  int page_shift = 0;
  bool takes_all = false;
  bool shares_scores = false;
  bool wide = false;  ///< rows begin on multiples of 16 bytes
  float scale = 1;
  unsigned blocks = 1;
};

/// Logits of the candidates [first, last) of a unit for heads [g0, g0 + Heads), by one block.
///
/// shapes      queries (Heads, pitch) in shared memory, scaled, 0 in their padding, behind a barrier
/// exactness   float sums, each lane's pieces in ascending order, lanes in a tree: the same bits wherever the rows lie
template <int Threads, int Heads, class E, class Far>
__device__ __forceinline__ void exact_logits(const exact_arguments<E, Far>& a, std::int64_t unit, const rerank_unit& u, std::int64_t first,
                                             std::int64_t last, int g0, const float* queries, int pitch) {
  constexpr int rows = Threads / row_lanes;
  const int dim = a.rows.key_dim, G = a.out.group, lane = static_cast<int>(threadIdx.x) % row_lanes;
  std::uint32_t largest = 0;  // order, of head g0 + lane
  for (std::int64_t turn = first; turn < last; turn += rows) {
    const std::int64_t t = turn + static_cast<int>(threadIdx.x) / row_lanes;
    const bool valid = t < last;
    std::int32_t id = 0, page = 0;
    if (valid && lane == 0) {
      id = a.in.ids[unit * a.in.id_pitch + t];
      page = u.pages[id >> a.page_shift];
    }
    id = __shfl_sync(all_lanes, id, 0, row_lanes);
    page = __shfl_sync(all_lanes, page, 0, row_lanes);
    const E* const row = a.far.row(a.rows, page, unit % a.out.heads, id & (a.rows.page_tokens - 1)).key;
    float sums[Heads];
    row_dots(row, valid, dim, a.wide, queries, pitch, sums);
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float sum = sums[h];
      if (!valid || lane != h || g0 + h >= G) continue;
      const float logit = sum - sum == 0 ? sum : quiet_nan;
      a.out.logits_of(unit)[(g0 + h) * a.out.pitch + t] = logit;
      if (score_order(logit) > largest) largest = score_order(logit);
    }
  }
  if (a.rule.by != group_rule::kind::softmax_sum) return;
#pragma unroll
  for (int step = row_lanes; step < warp_lanes; step *= 2) {
    const std::uint32_t other = __shfl_xor_sync(all_lanes, largest, step);
    if (other > largest) largest = other;
  }
  if (lane_of_thread() < Heads && largest != 0) atomicMax(a.out.counters_of(unit) + g0 + lane, largest);
}

template <int Threads, int Heads, class E, class Far>
__global__ void __launch_bounds__(Threads, 1) rerank_exact_kernel(exact_arguments<E, Far> a) {
  __shared__ rerank_unit u;
  __shared__ choose_scratch<Threads> scratch;
  const std::int64_t unit = blockIdx.x / a.blocks, first = std::int64_t{blockIdx.x % a.blocks} * exact_candidates;
  if (threadIdx.x == 0) u.read(a.batch, a.in, a.out, unit);
  __syncthreads();
  if (u.is_clear(a.takes_all)) {
    if (first == 0) choose_clear(a.in, a.out, unit, u, scratch);
    return;
  }
  if (first >= u.count) return;
  auto* const shared = dynamic_shared<float>();
  const int dim = a.rows.key_dim, pitch = row_query_floats(dim), G = a.out.group;
  const std::int64_t last = first + exact_candidates < u.count ? first + exact_candidates : u.count;
  for (int g0 = 0; g0 < G; g0 += Heads) {
    stage_row_queries<Threads, Heads>(a.in.plain + unit * G * dim, g0, G, dim, a.scale, shared);
    __syncthreads();
    exact_logits<Threads, Heads>(a, unit, u, first, last, g0, shared, pitch);
    __syncthreads();
  }
  const auto blocks = static_cast<unsigned>((u.count + exact_candidates - 1) / exact_candidates);
  if (!arrives_last(a.out.counters_of(unit) + G, blocks)) return;
  choose_best(a.rule, a.in, a.out, unit, u, a.rule.by == group_rule::kind::softmax_sum, a.shares_scores ? shared : nullptr, scratch);
}

/// The best candidates of every unit of a step, from their rows.
///
/// what        logits scale q.k of candidates, NaN where that is not finite: such a key is never chosen; then as reranking by codes
/// shapes      see rerank_input (plain, ids, counts, lse) and rerank_output; batch: items under the page ids of the rows; far: where pages
///             lie that are not near
/// cost        one launch; reads the K rows of the candidates once for every eight heads
/// exactness   float sums: within 2^-22 D max|q_d k_d| scale of the true logit; the same bits on every run and for every planned maximum
/// errors      usage_error for shapes that do not fit; ids and counts are not checked
template <element E, class Far = all_near>
void rerank(const device& exec, const exact& policy, const key_sketch& sketch, const row_view<const E>& rows, const device_batch& batch,
            const rerank_input& in, const rerank_output& out, const Far& far = {}, call_site where = call_site::here()) {
  require_range("rerank: key_dim", rows.key_dim, 1, 576, where);
  require_range("rerank: heads of the group", out.group, 1, most_scored_heads, where);
  require_range("rerank: candidates", out.candidates, 0, INT32_MAX, where);
  require_range("rerank: candidates that heads with one budget propose", out.heads * out.pool_pitch, 0, INT32_MAX, where);
  exact_arguments<E, Far> a;
  a.rule = policy.rule;
  a.batch = batch;
  a.rows = rows;
  a.far = far;
  a.in = in;
  a.out = out;
  a.page_shift = page_shift_of(rows.page_tokens);
  a.takes_all = sketch.norms;
  a.shares_scores = shared_score_bytes(out.candidates) > 0;
  a.wide = rows_on_16(rows.key);
  a.scale = logit_scale(in.scale, rows.key_dim);
  const std::int64_t blocks = out.candidates > 0 ? ceil_div(out.candidates, exact_candidates) : 1;
  require_range("rerank: blocks", blocks * out.units(), 0, INT32_MAX, where);
  a.blocks = static_cast<unsigned>(blocks);
  const auto run = [&]<int Heads>() {
    const std::size_t queries = sizeof(float) * static_cast<std::size_t>(Heads * round_up(rows.key_dim, 8));
    const std::size_t scores = a.shares_scores ? shared_score_bytes(out.candidates) : 0;
    launch(exec,
           {.grid = dim3(static_cast<unsigned>(blocks * out.units())),
            .threads = exact_threads,
            .shared_bytes = std::max({queries, scores, out.pool_bytes()})},
           rerank_exact_kernel<exact_threads, Heads, E, Far>, a);
  };
  if (out.group <= 4) return run.template operator()<4>();
  run.template operator()<8>();
}

}  // namespace kvx
