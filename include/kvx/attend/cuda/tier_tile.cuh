#pragma once
// A tile of attention in tiers: some pages and their members become weights, by one block, heads of a group at a time.

#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/power_of_two.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/math.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Query heads and threads of a block; members and pages of a tile.
inline constexpr int tier_heads = 4, tier_threads = 256, most_tile_members = 1024, most_tile_pages = 128;

/// Pages of a tile: as many as have at most so many members. Pages of more than 1,024 tokens have no tiers here.
KVX_HD constexpr int tile_pages(int page_tokens) {
  const int pages = most_tile_members / page_tokens;
  return pages < 1 ? 1 : pages < most_tile_pages ? pages : most_tile_pages;
}

/// What a tile's weights are made of, for one unit. All pointers are the device's. Plain members: it lies in shared memory.
///
/// members     of the unit's zone, and its pages: see tier_unit_members
/// ids         (pages of the zone) under which their columns lie; dots (pages, G)
/// marks       (C), of the candidates that were ranked: 1 where their rows are attended to, else 0; logits (G, pitch); scores (C)
/// skips       values are left out; least: score of one that is read
template <class Members>
struct tier_source {
  Members members;
  const std::int32_t* ids;
  const float* dots;
  const std::uint8_t* marks;
  const float* logits;
  const float* scores;
  std::int64_t pitch;
  float least;
  int first_head;
  int group;
  bool coded;
  bool tail;
  bool skips;
};

/// Marks of members: taken as coded; attended to by their rows; left in the tail of their page, since no code of theirs can be read.
inline constexpr std::uint8_t coded_member = 0, exact_member = 1, unread_member = 2;

/// From a logit to a score in units of log 2.
KVX_HD inline float tier_score(float logit, float soft_cap) {
  return log2_of_e * (soft_cap > 0 ? soft_cap * tanhf(logit / soft_cap) : logit);
}

/// What a block keeps of its heads. Plain members: it lies in shared memory.
///
/// page_units  nats for one unit of a page dot
/// max, sum    of the softmax so far; base: what scores of the tile are taken against; factor: of what was summed before
struct tier_softmax {
  double page_units[tier_heads];
  float max[tier_heads];
  float sum[tier_heads];
  float base[tier_heads];
  float factor[tier_heads];
};

/// A tile in shared memory: its places are known to the compiler.
///
/// weights     of each head: logits, scores, then weights of coded members
/// tails       scores of tails, then weights of pages: of their tails and coded members
/// terms       logit of the page's mean; largest: score of the page
/// ids         of pages; members: see tier_unit_members::id; taken: places of those whose values are read
struct tier_tile {
  float weights[tier_heads][most_tile_members + 8];
  float tails[tier_heads][most_tile_pages + 1];
  float terms[tier_heads][most_tile_pages + 1];
  float largest[tier_heads][most_tile_pages + 1];
  tier_page pages[most_tile_pages + 1];
  std::int32_t ids[most_tile_pages];
  std::int32_t members[most_tile_members];
  std::uint16_t taken[most_tile_members];
  std::uint8_t marks[most_tile_members];
};

/// Brings n pages from `first` of the source on, and their members. Returns how many these are. All threads call; ends in a barrier.
template <int Threads, class Members>
__device__ __forceinline__ int load_tier_tile(const tier_source<Members>& from, std::int64_t first, int n, tier_tile& tile,
                                              const tier_softmax& heads) {
  const int tid = static_cast<int>(threadIdx.x);
  for (int p = tid; p <= n; p += Threads) {
    const std::int32_t id = p < n ? from.ids[first + p] : 0;
    if (p < n) tile.ids[p] = id;
    tile.pages[p] = {from.members.start(first + p), p < n ? from.members.tokens(first + p, id) : 0};
  }
  for (int i = tid; i < n * tier_heads; i += Threads) {
    const int p = i / tier_heads, h = i % tier_heads, g = from.first_head + h;
    tile.terms[h][p] =
        g < from.group ? static_cast<float>(heads.page_units[h] * static_cast<double>(from.dots[(first + p) * from.group + g])) : 0.0f;
  }
  __syncthreads();
  const std::int64_t begin = tile.pages[0].start;
  const int count = static_cast<int>(tile.pages[n].start - begin);
#pragma unroll 1
  for (int t = tid; t < count; t += Threads) {
    const std::int64_t place = from.members.place(begin + t);
    tile.members[t] = from.members.id(begin + t);
    std::uint8_t mark = from.marks[place];
    if constexpr (Members::may_be_unread) {
      if (is_nan(from.scores[place])) mark = unread_member;
    }
    tile.marks[t] = mark;
#pragma unroll
    for (int h = 0; h < tier_heads; ++h) {
      const int g = from.first_head + h;
      if (g < from.group) tile.weights[h][t] = from.logits[g * from.pitch + place];
    }
  }
  __syncthreads();
  return count;
}

/// Logits become scores: of coded members, of what is left of each page. One thread a page and head.
template <int Threads, class Members>
__device__ __forceinline__ void score_tier_tile(const tier_source<Members>& from, int n, float soft_cap, tier_tile& tile) {
  const std::int32_t begin = tile.pages[0].start;
  for (int i = static_cast<int>(threadIdx.x); i < n * tier_heads; i += Threads) {
    const int p = i / tier_heads, h = i % tier_heads;
    const bool exists = from.first_head + h < from.group;
    float* const row = tile.weights[h];
    const float term = tile.terms[h][p];
    float members = 0, top = -infinity, rest = -infinity;
    int out = 0;  // tokens that are taken out of the tail
#pragma unroll 1
    for (int t = tile.pages[p].start - begin; t < tile.pages[p + 1].start - begin; ++t) {
      const bool exact = tile.marks[t] == exact_member;
      float score = -infinity;
      if (exists && (exact || (from.coded && tile.marks[t] == coded_member))) {
        members += row[t] - term;
        ++out;
        if (!exact) score = tier_score(row[t], soft_cap);
      }
      row[t] = score;
      top = score > top ? score : top;
    }
    const int left = tile.pages[p].tokens - out;
    if (exists && from.tail && left >= (out == 0 ? Members::fewest_untouched : fewest_in_tail))
      rest = log2_of_e * log(static_cast<float>(left)) + tier_score(tail_logit(term, members, left), soft_cap);
    tile.tails[h][p] = rest;
    tile.largest[h][p] = rest > top ? rest : top;
  }
  __syncthreads();
}

/// Scores become weights, relative to the largest score so far. One thread a page and head; sums in a fixed order.
template <int Threads>
__device__ __forceinline__ void weigh_tier_tile(int n, tier_tile& tile, tier_softmax& heads) {
  const int warp = warp_of_thread(), lane = lane_of_thread();
  if (warp < tier_heads) {
    float top = heads.max[warp];
    for (int p = lane; p < n; p += warp_lanes) {
      const float x = tile.largest[warp][p];
      top = x > top ? x : top;
    }
    top = warp_max(top);
    const float base = top == -infinity ? 0 : top;
    __syncwarp();
    if (lane == 0) {
      heads.factor[warp] = power_of_two(heads.max[warp] - base);
      heads.base[warp] = base;
      heads.max[warp] = top;
    }
  }
  __syncthreads();
  const std::int32_t begin = tile.pages[0].start;
  for (int i = static_cast<int>(threadIdx.x); i < n * tier_heads; i += Threads) {
    const int p = i / tier_heads, h = i % tier_heads;
    float* const row = tile.weights[h];
    float sum = power_of_two(tile.tails[h][p] - heads.base[h]);
#pragma unroll 1
    for (int t = tile.pages[p].start - begin; t < tile.pages[p + 1].start - begin; ++t) {
      row[t] = power_of_two(row[t] - heads.base[h]);
      sum += row[t];
    }
    tile.tails[h][p] = sum;
  }
  __syncthreads();
  if (warp >= tier_heads) return;
  float sum = 0;
  for (int p = lane; p < n; p += warp_lanes) sum += tile.tails[warp][p];
  sum = warp_sum(sum);
  if (lane == 0) heads.sum[warp] = heads.sum[warp] * heads.factor[warp] + sum;
}

/// The members whose values are read, ascending; returns how many. All threads call.
template <int Threads, class Members>
__device__ __forceinline__ int take_values(const tier_source<Members>& from, int count, tier_tile& tile,
                                           block_scratch<unsigned, Threads>& scratch) {
  const std::int64_t begin = tile.pages[0].start;
  int taken = 0;
  for (int first = 0; from.coded && first < count; first += Threads) {
    const int t = first + static_cast<int>(threadIdx.x);
    bool reads = t < count && tile.marks[t] == coded_member;
    if (reads && from.skips) reads = from.scores[from.members.place(begin + t)] >= from.least;
    if (reads) {
      bool weighs = false;
#pragma unroll
      for (int h = 0; h < tier_heads; ++h) weighs = weighs || tile.weights[h][t] != 0;
      reads = weighs;
    }
    unsigned all = 0;
    const unsigned before = block_exclusive_sum<Threads>(reads ? 1u : 0u, scratch, all);
    if (reads) tile.taken[taken + static_cast<int>(before)] = static_cast<std::uint16_t>(t);
    taken += static_cast<int>(all);
  }
  __syncthreads();
  return taken;
}

}  // namespace kvx
