#pragma once
// One unit's search for semantic pages on the device, by one block of threads: what it looks at, step by step, and what it finds.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/cuda/page_members.cuh>
#include <kvx/index/cuda/page_order.cuh>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Threads of a block that finds pages, and heads that it reads a key for: more would spill.
inline constexpr int find_threads = 512, find_heads = 4;

/// One unit's pages, by one block of threads. All threads call.
template <int Threads, int Heads, class Call>
class page_finder {
 public:
  struct scratch {
    group_scratch<Threads> group;
    top_k_scratch<Threads> best;
    block_scratch<int, Threads> sums;
    float promised[most_scored_heads];
  };

  __device__ page_finder(const Call& call, std::int64_t unit, const page_zone& zone, scratch& s, float* queries)
      : call_(call), unit_(unit), zone_(zone), s_(s), queries_(queries) {}

  /// Leaves the pages found, ascending. Returns how many.
  __device__ std::int64_t find() {
    const bool members = call_.index.rank == dci_shape::ranking::mean_then_member;
    if (call_.descends()) read_best_members();
    if (members || !call_.how.interleave) {
      block_group_scores(call_.how.rule, logits(), call_.to.page_pitch, G(), zone_.looked_at, resident(), nullptr, scores(), s_.group);
      __syncthreads();
    }
    if (members) rank_members(look_at_best());
    if (call_.how.interleave) {
      take_turns(logits(), call_.to.page_pitch, G(), zone_.looked_at, zone_.wanted, tops(), order(), scores(), s_.best);
    }
    std::int32_t* const found = call_.to.found + unit_ * call_.to.found_pitch;
    const auto take = [&](std::int64_t i, std::int64_t t) { found[i] = static_cast<std::int32_t>(zone_.first + zone_.page(t)); };
    const std::int64_t count = block_top_k(scores(), zone_.looked_at, zone_.wanted, s_.best, take).taken;
    const auto score_of = [&](std::int32_t page) { return scores()[zone_.number_of(page)]; };
    if (zone_.kept.to != nullptr) keep_pages<Threads>(*zone_.kept.to, zone_.position, found, count, score_of);
    return count;
  }

 private:
  __device__ int G() const { return call_.group; }
  __device__ float* logits() const { return call_.to.logits + unit_ * G() * call_.to.page_pitch; }
  __device__ float* scores() const { return call_.to.scores + unit_ * call_.to.page_pitch; }
  __device__ std::int32_t* tops() const { return call_.to.tops + unit_ * call_.to.probe_pitch; }
  __device__ std::int32_t* order() const { return call_.to.order + unit_ * call_.to.probe_pitch; }
  __device__ float* best() const { return call_.to.best + unit_ * G() * call_.to.probe_pitch; }
  __device__ const float* resident() const { return call_.resident != nullptr ? call_.resident + unit_ * G() : nullptr; }

  /// logits: those that a beam has left.
  __device__ void read_best_members() {
    for (int g = 0; g < G(); ++g) {
      const std::int64_t row = (unit_ * G() + g) * call_.to.page_pitch;
      for (std::int64_t j = threadIdx.x; j < zone_.count; j += Threads) {
        const unsigned order = call_.to.tree.orders[row + j];
        call_.to.logits[row + j] = order != 0 ? score_of(order) : quiet_nan;
      }
    }
    __syncthreads();
  }

  __device__ void forget_logits() {
    for (int g = 0; g < G(); ++g) {
      for (std::int64_t t = threadIdx.x; t < zone_.looked_at; t += Threads) logits()[g * call_.to.page_pitch + t] = quiet_nan;
    }
    __syncthreads();
  }

  /// For every `Heads` heads, whose queries are staged; behind a barrier when it ends.
  template <class Each>
  __device__ __forceinline__ void for_heads(const Each& each) {
    const int dim = call_.rows.key_dim;
    for (int g0 = 0; g0 < G(); g0 += Heads) {
      stage_row_queries<Threads, Heads>(call_.plain + unit_ * G() * dim, g0, G(), dim, call_.scale, queries_);
      __syncthreads();
      each(g0);
      __syncthreads();
    }
  }

  /// Looks at the members of the most promising pages. Returns of how many.
  __device__ std::int64_t look_at_best() {
    const std::int64_t most = call_.probes(zone_.count, zone_.wanted);
    if (call_.how.probes > 0) {
      const std::int64_t all = put_in_order(most);
      look_at_members(0, all);
      return all;
    }
    const std::int64_t probed = first_probes(zone_.count, zone_.wanted), first = least(most, probed > 64 ? probed : 64);
    std::int64_t ordered = put_in_order(first), end = ordered < first ? ordered : most;  // of those that may be looked at
    std::int64_t seen = least(ordered, probed);
    look_at_members(0, seen);
    while (seen < end) {
      std::int64_t step = seen / 8 > 4 ? seen / 8 : 4;
      if (seen + step > ordered && ordered < end) {
        const std::int64_t more = least(end, 2 * (seen + step));
        ordered = put_in_order(more);
        if (ordered < more) end = ordered;
        if (seen >= end) break;
      }
      if (!next_matters(seen)) break;
      step = least(step, end - seen);
      look_at_members(seen, seen + step);
      seen += step;
    }
    return seen;
  }

  __device__ static std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  /// order: the k most promising pages, the best first. Returns how many there are.
  __device__ std::int64_t put_in_order(std::int64_t k) { return order_best(scores(), zone_.looked_at, k, tops(), order(), s_.best); }

  /// Logits of the best members of pages [from, to) in order, a warp a page.
  __device__ void look_at_members(std::int64_t from, std::int64_t to) {
    constexpr int side = warp_lanes / row_lanes;
    const int dim = call_.rows.key_dim, P = call_.page_tokens;
    const std::int64_t head = unit_ % call_.heads;
    for_heads([&](int g0) {
      for (std::int64_t i = from + warp_of_thread(); i < to; i += Threads / warp_lanes) {
        const std::int64_t page = zone_.first + zone_.page(order()[i]);
        const std::int64_t block = page * P / call_.index.block * call_.index.block;
        const packed_page packed = call_.packed(zone_.pages[page], head);
        const int count = packed.count();
        float most[Heads];
#pragma unroll
        for (int h = 0; h < Heads; ++h) most[h] = -infinity;
        for (int turn = 0; turn < count; turn += side) {
          const int m = turn + lane_of_thread() / row_lanes;
          const std::int64_t token = block + packed.member(m < count ? m : 0);
          float sums[Heads];
          row_dots(call_.far.row(call_.rows, zone_.frames[token / P], head, token % P).key, m < count, dim, call_.wide, queries_,
                   row_query_floats(dim), sums);
#pragma unroll
          for (int h = 0; h < Heads; ++h) {
            if (m < count && sums[h] - sums[h] == 0 && sums[h] > most[h]) most[h] = sums[h];  // NaN and infinity change nothing
          }
        }
#pragma unroll
        for (int h = 0; h < Heads; ++h) {
#pragma unroll
          for (int step = row_lanes; step < warp_lanes; step *= 2) {
            const float other = __shfl_xor_sync(all_lanes, most[h], step);
            if (other > most[h]) most[h] = other;
          }
          if (lane_of_thread() == 0 && g0 + h < G()) best()[(g0 + h) * call_.to.probe_pitch + i] = most[h];
        }
      }
    });
  }

  /// Whether page `seen` in order promises enough: probe_margin times the last of the pages that would be found now.
  __device__ bool next_matters(std::int64_t seen) {
    find_shares(best(), call_.to.probe_pitch, G(), seen, resident(), nullptr, s_.group);
    for (int g = static_cast<int>(threadIdx.x); g < G(); g += Threads) {
      const float x = logits()[g * call_.to.page_pitch + order()[seen]] - s_.group.base[g];
      s_.promised[g] = exp(x < 60 ? x : 60.0f) * s_.group.factor[g];  // finite, so that a head without weight asks for nothing
    }
    __syncthreads();
    float next = 0;
    for (int g = 0; g < G(); ++g) next += s_.promised[g];
    int worthier = 0;  // pages that are worth more than that
    for (std::int64_t i = threadIdx.x; i < seen; i += Threads) worthier += next < probe_margin * worth_of(i) ? 1 : 0;
    worthier = block_reduce<Threads>(
        worthier, [](int a, int b) { return a + b; }, s_.sums);
    return worthier < least(seen, zone_.wanted);
  }

  __device__ float worth_of(std::int64_t i) const {
    float worth = 0;
    for (int g = 0; g < G(); ++g)
      worth += rounded_product(quick_exp(best()[g * call_.to.probe_pitch + i] - s_.group.base[g]), s_.group.factor[g]);
    return worth;
  }

  /// scores, or where heads take turns logits: those of the pages whose members were seen, NaN elsewhere.
  __device__ void rank_members(std::int64_t seen) {
    float* const worth = call_.to.worth + unit_ * call_.to.probe_pitch;
    for (int g = 0; g < G(); ++g) {
      for (std::int64_t i = threadIdx.x; i < seen; i += Threads) {
        float& logit = best()[g * call_.to.probe_pitch + i];
        if (logit == -infinity) logit = quiet_nan;
      }
    }
    __syncthreads();
    if (call_.how.interleave) {
      forget_logits();
      for (int g = 0; g < G(); ++g) {
        for (std::int64_t i = threadIdx.x; i < seen; i += Threads)
          logits()[g * call_.to.page_pitch + order()[i]] = best()[g * call_.to.probe_pitch + i];
      }
      return __syncthreads();
    }
    block_group_scores(call_.how.rule, best(), call_.to.probe_pitch, G(), seen, resident(), nullptr, worth, s_.group);
    for (std::int64_t t = threadIdx.x; t < zone_.looked_at; t += Threads) scores()[t] = quiet_nan;
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < seen; i += Threads) scores()[order()[i]] = worth[i];
    __syncthreads();
  }

  const Call& call_;
  std::int64_t unit_;
  const page_zone& zone_;
  scratch& s_;
  float* queries_;  // (Heads, row_query_floats(D))
};

template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads, 1) find_pages_kernel(Call call) {
  using finder = page_finder<Threads, Heads, Call>;
  __shared__ typename finder::scratch scratch;
  __shared__ page_zone zone;
  const std::int64_t unit = blockIdx.x;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  if (zone.kept.waits) return;
  if (zone.wanted <= 0) {
    if (threadIdx.x != 0) return;
    call.to.counts[unit] = zone.wanted < 0 ? -1 : 0;
    call.to.found_counts[unit] = 0;
    call.to.missed[unit] = static_cast<std::int32_t>(zone.count);
    return;
  }
  std::int32_t* const found = call.to.found + unit * call.to.found_pitch;
  std::int64_t count = zone.count;
  if (zone.is_searched()) {
    count = finder(call, unit, zone, scratch, dynamic_shared<float>()).find();
  } else if (zone.is_chosen()) {
    count = take_kept<Threads>(*zone.kept.from, zone.wanted, found);
  } else {
    for (std::int64_t i = threadIdx.x; i < count; i += Threads) found[i] = static_cast<std::int32_t>(zone.first + i);
    __syncthreads();
  }
  if (threadIdx.x == 0) call.to.missed[unit] = static_cast<std::int32_t>(zone.count - count);
  list_members<Threads>(call, unit, zone, count, scratch.sums);
}

}  // namespace kvx
