#pragma once
// Search for semantic pages on the device: the means of all pages, then the members of the most promising until the next promises too
// little; or a beam through the tree.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/cuda/page_members.cuh>
#include <kvx/index/cuda/tree_search.cuh>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads and pages of a block that looks at means; threads of one that finds pages, and heads that it reads a key for: more would spill.
inline constexpr int mean_threads = 256, mean_pages = 256, find_threads = 512, find_heads = 4;

/// Logits of the means of some pages of one unit, with what their spreads may add where members are looked at; NaN for a page without
/// members.
template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads) scan_means_kernel(Call call, int chunks) {
  __shared__ page_zone zone;
  __shared__ float reach[Heads];  // what a spread of 1 adds
  const std::int64_t unit = blockIdx.x / chunks, head = unit % call.heads, first = std::int64_t{blockIdx.x % chunks} * mean_pages;
  if (threadIdx.x == 0) zone = page_zone_of(call, call.batch, call.row_items, unit);
  __syncthreads();
  if (!zone.is_searched() || first >= zone.count) return;
  auto* const queries = dynamic_shared<float>();
  const int dim = call.rows.key_dim, G = call.group, lane = lane_of_thread() % row_lanes;
  const float* const plain = call.plain + unit * G * dim;
  const std::int64_t last = first + mean_pages < zone.count ? first + mean_pages : zone.count;
  const float spread = call.index.rank == dci_shape::ranking::mean_then_member ? call.how.spread : 0;
  for (int g0 = 0; g0 < G; g0 += Heads) {
    stage_row_queries<Threads, Heads>(plain, g0, G, dim, call.scale, queries);
    for (int h = warp_of_thread(); h < Heads && g0 + h < G; h += Threads / warp_lanes) {
      double square = 0;
      for (int d = lane_of_thread(); d < dim; d += warp_lanes) {
        const auto q = static_cast<double>(plain[(g0 + h) * dim + d]);
        square += q * q;
      }
      square = warp_sum(square);
      const float scale = call.scale < 0 ? -call.scale : call.scale;
      if (lane_of_thread() == 0) reach[h] = spread * scale * static_cast<float>(sqrt(square));
    }
    __syncthreads();
    for (std::int64_t turn = first; turn < last; turn += Threads / row_lanes) {
      const std::int64_t j = turn + static_cast<int>(threadIdx.x) / row_lanes;
      const bool valid = j < last;
      const std::int32_t page = zone.pages[zone.first + (valid ? j : first)];
      float sums[Heads];
      row_dots(reinterpret_cast<const bf16*>(call.means.at(page, head)), valid, dim, true, queries, row_query_floats(dim), sums);
      const packed_page packed = call.packed(page, head);
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        if (!valid || lane != h || g0 + h >= G) continue;
        const bool real = packed.count() > 0 && sums[h] - sums[h] == 0;
        call.to.logits[(unit * G + g0 + h) * call.to.page_pitch + j] =
            real ? sums[h] + rounded_product(reach[h], packed.spread()) : quiet_nan;
      }
    }
    __syncthreads();
  }
}

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
    if (call_.descends()) read_best_members();
    block_group_scores(call_.how.rule, logits(), call_.to.page_pitch, G(), zone_.count, resident(), nullptr, scores(), s_.group);
    __syncthreads();
    if (call_.index.rank == dci_shape::ranking::mean_then_member) rank_members(look_at_best());
    std::int32_t* const found = call_.to.found + unit_ * call_.to.found_pitch;
    const auto take = [&](std::int64_t i, std::int64_t t) { found[i] = static_cast<std::int32_t>(zone_.first + t); };
    return block_top_k(scores(), zone_.count, zone_.wanted, s_.best, take).taken;
  }

 private:
  __device__ int G() const { return call_.group; }
  __device__ float* logits() const { return call_.to.logits + unit_ * G() * call_.to.page_pitch; }
  __device__ float* scores() const { return call_.to.scores + unit_ * call_.to.page_pitch; }
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
  __device__ std::int64_t put_in_order(std::int64_t k) {
    std::int32_t* const tops = call_.to.tops + unit_ * call_.to.probe_pitch;
    const float* const of = scores();
    const auto take = [&](std::int64_t i, std::int64_t t) { tops[i] = static_cast<std::int32_t>(t); };
    const std::int64_t taken = block_top_k(of, zone_.count, k, s_.best, take).taken;
    for (std::int64_t i = threadIdx.x; i < taken; i += Threads) {
      const float score = of[tops[i]];
      std::int64_t rank = 0;
      for (std::int64_t j = 0; j < taken; ++j) {
        const float other = of[tops[j]];
        rank += other > score || (other == score && j < i) ? 1 : 0;
      }
      order()[rank] = tops[i];
    }
    __syncthreads();
    return taken;
  }

  /// Logits of the best members of pages [from, to) in order, a warp a page.
  __device__ void look_at_members(std::int64_t from, std::int64_t to) {
    constexpr int side = warp_lanes / row_lanes;
    const int dim = call_.rows.key_dim, P = call_.page_tokens;
    const std::int64_t head = unit_ % call_.heads;
    for (int g0 = 0; g0 < G(); g0 += Heads) {
      stage_row_queries<Threads, Heads>(call_.plain + unit_ * G() * dim, g0, G(), dim, call_.scale, queries_);
      __syncthreads();
      for (std::int64_t i = from + warp_of_thread(); i < to; i += Threads / warp_lanes) {
        const std::int64_t page = zone_.first + order()[i], block = page * P / call_.index.block * call_.index.block;
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
      __syncthreads();
    }
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

  /// scores: those of the pages whose members were seen, NaN elsewhere.
  __device__ void rank_members(std::int64_t seen) {
    float* const worth = call_.to.worth + unit_ * call_.to.probe_pitch;
    for (int g = 0; g < G(); ++g) {
      for (std::int64_t i = threadIdx.x; i < seen; i += Threads) {
        float& logit = best()[g * call_.to.probe_pitch + i];
        if (logit == -infinity) logit = quiet_nan;
      }
    }
    __syncthreads();
    block_group_scores(call_.how.rule, best(), call_.to.probe_pitch, G(), seen, resident(), nullptr, worth, s_.group);
    for (std::int64_t t = threadIdx.x; t < zone_.count; t += Threads) scores()[t] = quiet_nan;
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
  if (threadIdx.x == 0) zone = page_zone_of(call, call.batch, call.row_items, unit);
  __syncthreads();
  if (zone.wanted <= 0) {
    if (threadIdx.x != 0) return;
    call.to.counts[unit] = zone.wanted < 0 ? -1 : 0;
    call.to.found_counts[unit] = 0;
    call.to.missed[unit] = static_cast<std::int32_t>(zone.count);
    return;
  }
  std::int64_t count = zone.count;
  if (zone.is_searched()) {
    count = finder(call, unit, zone, scratch, dynamic_shared<float>()).find();
  } else {
    std::int32_t* const found = call.to.found + unit * call.to.found_pitch;
    for (std::int64_t i = threadIdx.x; i < count; i += Threads) found[i] = static_cast<std::int32_t>(zone.first + i);
    __syncthreads();
  }
  if (threadIdx.x == 0) call.to.missed[unit] = static_cast<std::int32_t>(zone.count - count);
  list_members<Threads>(call, unit, zone, count, scratch.sums);
}

/// The members of the semantic pages that each unit's queries look for.
///
/// what        search_pages of the host for mean_then_member, mean_key and best_member: pages have the logits of their best members seen
/// shapes      see page_search_shape and page_search_arrays
/// cost        two launches: reads all means once for every eight heads; then one block a unit. best_member: three, see search_tree
/// exactness   given the same logits the host's pages, where its sums of exponentials do not differ in their last bits; the same bits on
///             every run
/// errors      usage_error for shapes that do not fit, and other rankings
template <element E, class Budget, class Far>
void search_pages(const device& exec, const page_search_call<E, Budget, Far>& call, call_site where = call_site::here()) {
  using ranking = dci_shape::ranking;
  require(call.index.rank == ranking::mean_then_member || call.index.rank == ranking::mean_key || call.descends(),
          "search_pages: on a device pages are ranked by mean_then_member, mean_key or best_member", where);
  require(!call.how.interleave, "search_pages: on a device the heads of a group rank pages together", where);
  require_range("search_pages: key_dim", call.rows.key_dim, 1, 576, where);
  require_range("search_pages: heads of the group", call.group, 1, most_scored_heads, where);
  const std::int64_t units = call.units(), chunks = ceil_div(ceil_div(call.longest, call.page_tokens), mean_pages);
  require_range("search_pages: blocks", units * chunks, 0, INT32_MAX, where);
  const auto queries = [&](int heads) { return sizeof(float) * static_cast<std::size_t>(heads * row_query_floats(call.rows.key_dim)); };
  const auto scan = [&]<int Heads>() {
    launch(exec, {.grid = dim3(static_cast<unsigned>(units * chunks)), .threads = mean_threads, .shared_bytes = queries(Heads)},
           scan_means_kernel<mean_threads, Heads, page_search_call<E, Budget, Far>>, call, static_cast<int>(chunks));
  };
  if (call.descends()) {
    search_tree(exec, call, where);
  } else if (call.group <= 4) {
    scan.template operator()<4>();
  } else {
    scan.template operator()<8>();
  }
  launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = find_threads, .shared_bytes = queries(find_heads)},
         find_pages_kernel<find_threads, find_heads, page_search_call<E, Budget, Far>>, call);
}

}  // namespace kvx
