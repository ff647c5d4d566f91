#pragma once
// Reranking by key codes on the device: one thread a candidate; the last block of a unit chooses the best.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/phases.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/sign_sums.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/cuda/choose.cuh>
#include <kvx/rerank/cuda/code_logits.cuh>
#include <kvx/rerank/cuda/code_sums.cuh>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/top_k.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// What the kernel is told.
///
/// blocks      of a unit, for the planned maximum
/// takes_all   where a unit has no more candidates than it keeps, all are chosen without a look: a sketch with norms proposes no key of
///             NaN
struct rerank_codes_arguments : code_reading {
  group_rule rule;
  device_batch batch;
  rerank_output out;
  bool takes_all = false;
  bool shares_scores = false;
  unsigned blocks = 1;
};

/// Logits of one candidate a thread, t of the unit, and the largest of each head's; whole warps call.
template <int Bits, int Heads, bool OneWeight>
__device__ __forceinline__ void code_logits(const rerank_codes_arguments& a, std::int64_t unit, const rerank_unit& u, std::int64_t t,
                                            const std::int8_t* whole, const signed_levels<Bits>& levels, const code_units& units) {
  const bool valid = t < u.count;
  const int G = a.out.group, lane = lane_of_thread();
  const token_code<Bits> code(a, unit, u.pages, valid ? a.in.ids[unit * a.in.id_pitch + t] : -1);
  if (valid && a.out.marks != nullptr) a.out.marks[unit * a.out.pitch + t] = 0;
  for (int g0 = 0; g0 < G; g0 += Heads) {
    code.template logits<Heads, OneWeight>(a, g0, whole, levels, units, [&](int g, float logit) {
      if (valid) a.out.logits_of(unit)[g * a.out.pitch + t] = logit;
      if (a.rule.by != group_rule::kind::softmax_sum) return;
      const std::uint32_t order = __reduce_max_sync(all_lanes, valid ? score_order(logit) : 0u);
      if (lane == 0 && order != 0) atomicMax(a.out.counters_of(unit) + g, order);
    });
  }
}

/// Candidates [first, first + rerank_candidates) of one unit: logits, then, when all blocks of the unit have theirs, what softmax_sum makes
/// of them. The last block of a unit chooses.
///
/// what        blocks are numbered as they start: first those that compute logits, then those that add exponentials, then those that
///             score. Only later ones wait for earlier ones. Other rules need logits alone
template <int Threads, int Bits, int Heads, bool OneWeight>
__global__ void __launch_bounds__(Threads, Heads <= 4 ? 2 : 1) rerank_codes_kernel(rerank_codes_arguments a) {
  __shared__ rerank_unit u;
  __shared__ unsigned number;
  __shared__ union {
    code_units queries;
    choose_scratch<Threads> choose;
  } scratch;
  __shared__ std::int8_t table[Bits == 8 ? 512 : 1];
  const bool sums = a.rule.by == group_rule::kind::softmax_sum;
  const auto each = static_cast<unsigned>(a.out.units()) * a.blocks;  // blocks of a phase
  if (threadIdx.x == 0) {
    number = sums ? start_number(a.out.started(), 3 * each) : blockIdx.x;
    u.read(a.batch, a.in, a.out, number % each / a.blocks);
  }
  __syncthreads();
  const unsigned phase = number / each;
  const std::int64_t unit = number % each / a.blocks, first = std::int64_t{number % a.blocks} * rerank_candidates;
  if (u.is_clear(a.takes_all || u.is_zone)) {
    if (first == 0 && phase == 0) choose_clear(a.in, a.out, unit, u, scratch.choose);
    return;
  }
  if (first >= u.count) return;
  const auto blocks = static_cast<unsigned>((u.count + rerank_candidates - 1) / rerank_candidates);
  const std::int64_t last = first + rerank_candidates < u.count ? first + rerank_candidates : u.count;
  unsigned* const done = a.out.counters_of(unit) + a.out.group;  // (3)
  auto* const shared = dynamic_shared<std::byte>();
  if (phase == 0) {
    auto* const whole = reinterpret_cast<std::int8_t*>(shared);
    load_code_queries<Threads, Heads>(a, unit, whole, scratch.queries);
    if constexpr (Bits == 8) fill_signed_levels(a.layout, static_cast<int>(threadIdx.x), Threads, table);
    __syncthreads();
    const signed_levels<Bits> levels(a.layout, table);
    for (std::int64_t t = first; t < last; t += Threads)
      code_logits<Bits, Heads, OneWeight>(a, unit, u, t + threadIdx.x, whole, levels, scratch.queries);
    if (sums) return tell_done(done);
    if (!arrives_last(done, blocks)) return;
    return choose_best(a.rule, a.in, a.out, unit, u, false, a.shares_scores ? reinterpret_cast<float*>(shared) : nullptr, scratch.choose);
  }
  if (phase == 1) {
    wait_for(done, blocks);
    sum_exponentials(a.in, a.out, unit, first, last, scratch.choose);
    return tell_done(done + 1);
  }
  wait_for(done + 1, blocks);
  score_candidates(a.in, a.out, unit, first, last, blocks, scratch.choose);
  if (!arrives_last(done + 2, blocks)) return;
  for (int i = static_cast<int>(threadIdx.x); i < a.out.group + 2; i += Threads) a.out.counters_of(unit)[i] = 0;
  const float* scores = a.out.scores + unit * a.out.pitch;
  if (a.shares_scores) {
    auto* const near = reinterpret_cast<float*>(shared);
    for (std::int64_t t = threadIdx.x; t < u.count; t += Threads) near[t] = scores[t];
    scores = near;
    __syncthreads();
  }
  choose_scored(a.in, a.out, unit, u, scores, scratch.choose);
}

/// The launch, for codes of `Bits` bits.
template <int Bits>
void rerank_codes(const device& exec, rerank_codes_arguments a, bool one_weight, call_site where) {
  const auto run = [&]<int Heads>() {
    const std::int64_t blocks = a.out.candidates > 0 ? ceil_div(a.out.candidates, rerank_candidates) : 1;
    const std::int64_t phases = a.rule.by == group_rule::kind::softmax_sum ? 3 : 1;
    require_range("rerank: blocks", phases * blocks * a.out.units(), 0, INT32_MAX, where);
    a.blocks = static_cast<unsigned>(blocks);
    const std::size_t queries = code_query_bytes<Heads>(a);
    const std::size_t scores = a.shares_scores ? shared_score_bytes(a.out.candidates) : 0;
    const launch_shape shape = {.grid = dim3(static_cast<unsigned>(phases * blocks * a.out.units())),
                                .threads = rerank_threads,
                                .shared_bytes = std::max({queries, scores, a.out.pool_bytes()})};
    if (one_weight) {
      launch(exec, shape, rerank_codes_kernel<rerank_threads, Bits, Heads, true>, a);
    } else {
      launch(exec, shape, rerank_codes_kernel<rerank_threads, Bits, Heads, false>, a);
    }
  };
  if (a.out.group == 1) return run.template operator()<1>();
  if (a.out.group <= 4) return run.template operator()<4>();
  run.template operator()<8>();
}

/// The best candidates of every unit of a step, from their codes.
///
/// what        logits of candidates as rsq_ip states, scores by the group rule, the `keep` best; all of them where a unit has no more,
///             if the sketch has norms and the shape asks for no marks, or they are all that a zone has
/// shapes      see rerank_input, rerank_output; page.key_dim D; columns of the layer, batch: items under the page ids of the columns.
///             What lies behind a unit's counts is not read, and units without candidates choose none
/// cost        one launch: 512 candidates a block; of softmax_sum's exponentials each block takes its part, and the last block of a unit
///             chooses; reads bits D / 8 + 2 D / m bytes a candidate
/// exactness   the host's bits: logits, scores and choice; the counters are maxima and counts of integers, so the order of blocks does not
///             matter. A key that is never found gets NaN and is not chosen
/// errors      usage_error for shapes that do not fit; ids and counts are not checked. More heads than 128 are refused
template <int Bits, tiers Others>
void rerank(const device& exec, const rsq_ip<Bits, Others>& policy, const key_sketch& sketch, page_shape page, const key_columns& columns,
            const device_batch& batch, const rerank_input& in, const rerank_output& out, call_site where = call_site::here()) {
  require(is_valid(sketch), "rerank: the sketch is none that keys can have", where);
  require_range("rerank: bits of the sketch", sketch.bits, Bits, Bits, where);
  require(is_valid(page), "rerank: no valid page shape", where);
  require_range("rerank: heads of the group", out.group, 1, most_scored_heads, where);
  require_range("rerank: candidates", out.candidates, 0, INT32_MAX, where);
  require_range("rerank: candidates that heads with one budget propose", out.heads * out.pool_pitch, 0, INT32_MAX, where);
  require(!sketch.centre || in.page_dots != nullptr, "rerank: page_dots are null, and the sketch has a centre", where);
  rerank_codes_arguments a;
  static_cast<code_reading&>(a) = code_reading_of<Bits>(sketch, page, columns, in, out.heads, out.group);
  a.rule = policy.rule;
  a.batch = batch;
  a.out = out;
  a.takes_all = sketch.norms && !out.marked;
  const bool leaves_scores = out.marked && policy.rule.by != group_rule::kind::softmax_sum;  // which writes them anyway
  a.shares_scores = shared_score_bytes(out.candidates) > 0 && !leaves_scores;
  rerank_codes<Bits>(exec, a, sketch.weights == key_sketch::weighting::key, where);
}

}  // namespace kvx
