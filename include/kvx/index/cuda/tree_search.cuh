#pragma once
// A beam through the tree on the device: one block of threads a unit goes down to level 1, many look at the children of what it leaves.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/cuda/nearest_children.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/sketch/cuda/top_k.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads of a block that leads a beam; threads and tokens of one that looks at children; heads that either reads a key for.
inline constexpr int beam_threads = 256, child_threads = 256, child_tokens = 2048, beam_heads = 4;

/// What both do for one unit. All threads call.
template <int Threads, int Heads, class Call>
class tree_searcher {
 public:
  __device__ tree_searcher(const Call& call, std::int64_t unit, const page_zone& zone, float* queries)
      : call_(call), unit_(unit), head_(unit % call.heads), zone_(zone), queries_(queries) {}

 protected:
  __device__ int G() const { return call_.group; }
  __device__ int P() const { return call_.page_tokens; }
  __device__ std::int64_t end() const { return (zone_.first + zone_.count) * P(); }
  __device__ unsigned* marks() const { return call_.to.tree.marks + unit_ * call_.to.tree.mark_words; }
  __device__ unsigned* chosen() const { return call_.to.tree.chosen + unit_ * call_.to.tree.mark_words; }

  /// Whether a token of some level is looked at: a child of the beam, or of the root.
  __device__ bool follows(std::int64_t token, int level) const {
    const std::int32_t parent = call_.link(zone_.pages[token / P()], head_, token % P());
    if (parent >= 0) return (marks()[parent / 32] >> (parent % 32) & 1) != 0;
    return parent == no_parent && level_of(call_.index, token) == level;
  }

  /// Looks at tokens: pages keep the logits of their best. Calls leave(g, i, logit), in one thread each; NaN for what is no number.
  template <class Leave>
  __device__ void look_at(const std::int32_t* ids, std::int64_t count, const Leave& leave) const {
    const int dim = call_.rows.key_dim, lane = lane_of_thread() % row_lanes;
    for (int g0 = 0; g0 < G(); g0 += Heads) {
      stage_row_queries<Threads, Heads>(call_.plain + unit_ * G() * dim, g0, G(), dim, call_.scale, queries_);
      __syncthreads();
      for (std::int64_t turn = 0; turn < count; turn += Threads / row_lanes) {
        const std::int64_t i = turn + static_cast<int>(threadIdx.x) / row_lanes;
        const bool valid = i < count;
        const std::int64_t token = ids[valid ? i : 0];
        float sums[Heads];
        row_dots(call_.far.row(call_.rows, zone_.frames[token / P()], head_, token % P()).key, valid, dim, call_.wide, queries_,
                 row_query_floats(dim), sums);
        const std::int64_t page = semantic_page(token);
#pragma unroll
        for (int h = 0; h < Heads; ++h) {
          if (!valid || lane != h || g0 + h >= G()) continue;
          const bool real = sums[h] - sums[h] == 0;
          if (real) atomicMax(call_.to.tree.orders + (unit_ * G() + g0 + h) * call_.to.page_pitch + page, score_order(sums[h]));
          leave(g0 + h, i, real ? sums[h] : quiet_nan);
        }
      }
      __syncthreads();
    }
  }

  const Call& call_;
  std::int64_t unit_, head_;
  const page_zone& zone_;
  float* queries_;  // (Heads, row_query_floats(D))

 private:
  /// The page that holds a token, counted from the first of the zone.
  __device__ std::int64_t semantic_page(std::int64_t token) const {
    const std::int64_t page = token / P();
    return token / call_.index.block * (call_.index.block / P()) +
           call_.packed(zone_.pages[page], head_).place(static_cast<int>(token % P())) - zone_.first;
  }
};

/// Goes down from the top to level 1, and marks the tokens of each beam.
template <int Threads, int Heads, class Call>
class beam_leader : tree_searcher<Threads, Heads, Call> {
  using base = tree_searcher<Threads, Heads, Call>;
  using base::call_, base::unit_, base::zone_, base::G, base::P, base::marks, base::chosen;

 public:
  struct scratch {
    group_scratch<Threads> group;
    top_k_scratch<Threads> best;
    block_scratch<int, Threads> sums;
  };

  __device__ beam_leader(const Call& call, std::int64_t unit, const page_zone& zone, scratch& s, float* queries)
      : base(call, unit, zone, queries), s_(s) {}

  __device__ void lead() {
    if (call_.narrows()) place_queries<Threads>(call_, unit_);
    clear();
    const std::int64_t breadth = call_.how.beam > 0 ? call_.how.beam : default_beam(zone_.count * P());
    for (int level = most_dci_level; level > 0; --level) {
      std::int64_t count = gather(level);
      if (count == 0) continue;
      if (call_.narrows() && count > call_.how.nearest) count = narrow(count);
      this->look_at(ids(), count, [&](int g, std::int64_t i, float logit) { logits()[g * tree().pitch + i] = logit; });
      choose(count, level == 1 ? breadth : upper_breadth * breadth);
    }
  }

 private:
  __device__ const beam_arrays& tree() const { return call_.to.tree; }
  __device__ std::int32_t* ids() const { return tree().ids + unit_ * tree().pitch; }
  __device__ float* logits() const { return tree().logits + unit_ * G() * tree().pitch; }
  __device__ float* scores() const { return tree().scores + unit_ * tree().pitch; }

  __device__ void clear() const {
    for (std::int64_t i = threadIdx.x; i < ceil_div(this->end(), 32); i += Threads) marks()[i] = 0;
    for (int g = 0; g < G(); ++g) {
      for (std::int64_t j = threadIdx.x; j < zone_.count; j += Threads) tree().orders[(unit_ * G() + g) * call_.to.page_pitch + j] = 0;
    }
    __syncthreads();
  }

  /// ids: the tokens of a level that are looked at, ascending. Returns how many.
  __device__ std::int64_t gather(int level) {
    const std::int32_t* const promoted = call_.promoted.of(level);
    return list(call_.promoted.before(level, this->end()), promoted,
                [&](std::int64_t i) { return promoted[i] >= zone_.first * P() && this->follows(promoted[i], level); });
  }

  /// ids: those of them that composite indices propose. Returns how many.
  __device__ std::int64_t narrow(std::int64_t count) {
    for (std::int64_t w = threadIdx.x; w < ceil_div(count, 32); w += Threads) chosen()[w] = 0;
    __syncthreads();
    mark_nearest(call_, unit_, zone_, ids(), count, scores(), s_.best, [&](std::int64_t t) { atomicOr(&chosen()[t / 32], 1u << t % 32); });
    return list(count, ids(), [&](std::int64_t i) { return (chosen()[i / 32] >> (i % 32) & 1) != 0; });
  }

  /// ids: those of `all` tokens that are taken(i), in their order; they may lie in ids themselves. Returns how many.
  template <class Taken>
  __device__ std::int64_t list(std::int64_t all, const std::int32_t* from, const Taken& taken) {
    std::int64_t count = 0;
    for (std::int64_t turn = 0; turn < all; turn += Threads) {
      const std::int64_t i = turn + threadIdx.x;
      const bool takes = i < all && taken(i);
      const std::int32_t token = takes ? from[i] : 0;
      int here = 0;
      const int before = block_exclusive_sum<Threads>(takes ? 1 : 0, s_.sums, here);
      if (takes) ids()[count + before] = token;
      count += here;
    }
    __syncthreads();
    return count;
  }

  /// Marks the best of the tokens that were looked at. Those of the levels above may stay marked: they have no children one level down.
  __device__ void choose(std::int64_t count, std::int64_t wanted) {
    const float* const resident = call_.resident != nullptr ? call_.resident + unit_ * G() : nullptr;
    block_group_scores(call_.how.rule, logits(), tree().pitch, G(), count, resident, nullptr, scores(), s_.group);
    __syncthreads();
    const auto take = [&](std::int64_t, std::int64_t t) { atomicOr(&marks()[ids()[t] / 32], 1u << ids()[t] % 32); };
    block_top_k(scores(), count, wanted, s_.best, take);
    __syncthreads();
  }

  scratch& s_;
};

template <int Threads, int Heads, class Call>
__global__ void __launch_bounds__(Threads, 1) lead_beam_kernel(Call call) {
  using leader = beam_leader<Threads, Heads, Call>;
  __shared__ typename leader::scratch scratch;
  __shared__ page_zone zone;
  if (threadIdx.x == 0) zone = page_zone_of(call, blockIdx.x);
  __syncthreads();
  if (!zone.is_searched()) return;
  leader(call, blockIdx.x, zone, scratch, dynamic_shared<float>()).lead();
}

/// Those of some tokens of one unit that are of level 0 and follow the beam.
template <int Threads, int Heads, class Call>
class child_looker : tree_searcher<Threads, Heads, Call> {
  using base = tree_searcher<Threads, Heads, Call>;

 public:
  struct scratch {
    block_scratch<int, Threads> sums;
    std::int32_t ids[child_tokens];
  };
  using base::base;

  /// Leaves a bit for each of tokens [first, first + child_tokens) that follows the beam. Promoted ones, which the leader has looked at, do
  /// not compete again.
  __device__ void mark(std::int64_t first) const {
    const std::int64_t zone_first = this->zone_.first * this->P();
    for (std::int64_t token = first + threadIdx.x; token < first + child_tokens; token += Threads) {
      const bool follows = token < this->end() && this->follows(token, 0) && level_of(this->call_.index, token) == 0;
      const unsigned marked = __ballot_sync(all_lanes, follows);
      if (lane_of_thread() == 0 && token < this->end()) this->chosen()[(token - zone_first) / 32] = marked;
    }
  }

  /// Tokens [first, first + child_tokens), as far as they are of the zone.
  __device__ void look(std::int64_t first, scratch& s) const {
    constexpr int each = child_tokens / Threads;
    unsigned taken = 0;
    for (int i = 0; i < each; ++i) {
      const std::int64_t token = first + i * Threads + threadIdx.x;
      taken |= token < this->end() && is_looked_at(token) ? 1u << i : 0u;
    }
    int count = 0;
    int at = block_exclusive_sum<Threads>(__popc(taken), s.sums, count);
    for (int i = 0; i < each; ++i) {
      if ((taken >> i & 1) != 0) s.ids[at++] = static_cast<std::int32_t>(first + i * Threads + threadIdx.x);
    }
    __syncthreads();
    if (count > 0) this->look_at(s.ids, count, [](int, std::int64_t, float) {});
  }

 private:
  __device__ bool is_looked_at(std::int64_t token) const {
    if (!this->call_.narrows()) return this->follows(token, 0);
    const std::int64_t i = token - this->zone_.first * this->P();
    return (this->chosen()[i / 32] >> (i % 32) & 1) != 0;
  }
};

/// Looks at the children of one chunk of tokens of one unit; or, where it Marks, leaves bits for those that composite indices choose among.
template <int Threads, int Heads, bool Marks, class Call>
__global__ void __launch_bounds__(Threads, 1) look_at_children_kernel(Call call, int chunks) {
  using looker = child_looker<Threads, Heads, Call>;
  __shared__ typename looker::scratch scratch;
  __shared__ page_zone zone;
  const std::int64_t unit = blockIdx.x / chunks;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  const std::int64_t first = zone.first * call.page_tokens + std::int64_t{blockIdx.x % chunks} * child_tokens;
  if (!zone.is_searched() || first >= (zone.first + zone.count) * call.page_tokens) return;
  const looker of(call, unit, zone, dynamic_shared<float>());
  if constexpr (Marks) {
    of.mark(first);
  } else {
    of.look(first, scratch);
  }
}

/// Leaves the logits of each page's best member that a beam through the tree comes to.
///
/// what        descend of the host's search: a page search_pages ranks follows
/// cost        two launches: a block of threads a unit reads the links of all promoted tokens and scores those that follow the beam; then
///             blocks of 2,048 tokens read all links, and score the children of the last beam. Where composite indices narrow these, two
///             more between them: links are read for a bit a token, and a block a unit reads the places of those that follow once for each
///             index
/// exactness   beams follow float sums of logits, as pages do; the same bits on every run: atomics take the largest, and set bits
template <class Call>
void search_tree(const device& exec, const Call& call, call_site where) {
  require(call.links.data != nullptr && (call.promoted.positions != nullptr || call.promoted.count() == 0),
          "search_pages: best_member needs links and promoted tokens", where);
  require(!call.narrows() || call.places.data != nullptr, "search_pages: composite indices need the places of keys", where);
  const std::int64_t units = call.units(), chunks = ceil_div(call.longest, child_tokens);
  require_range("search_pages: blocks", units * chunks, 0, INT32_MAX, where);
  const std::size_t queries = sizeof(float) * static_cast<std::size_t>(beam_heads * row_query_floats(call.rows.key_dim));
  launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = beam_threads, .shared_bytes = queries},
         lead_beam_kernel<beam_threads, beam_heads, Call>, call);
  const dim3 all(static_cast<unsigned>(units * chunks));
  if (call.narrows()) {
    launch(exec, {.grid = all, .threads = child_threads}, look_at_children_kernel<child_threads, beam_heads, true, Call>, call,
           static_cast<int>(chunks));
    launch(exec, {.grid = dim3(static_cast<unsigned>(units)), .threads = narrow_threads}, narrow_children_kernel<narrow_threads, Call>,
           call);
  }
  launch(exec, {.grid = all, .threads = child_threads, .shared_bytes = queries},
         look_at_children_kernel<child_threads, beam_heads, false, Call>, call, static_cast<int>(chunks));
}

}  // namespace kvx
