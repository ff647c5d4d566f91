#pragma once
// Attention to tokens whose rows are not read, on the device: coded rows and the tail of every unit of a batch, in one launch.

#include <kvx/attend/cuda/partial.cuh>
#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/cuda/tier_sums.cuh>
#include <kvx/attend/cuda/tier_tile.cuh>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/sign_sums.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/token_zone.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/cuda/value_code.cuh>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Pages of a piece: two tiles at least, and at most 128 pieces. A pure function of the zone: the launch does not change a result.
KVX_HD constexpr std::int64_t tier_piece(std::int64_t pages, int page_tokens) {
  const std::int64_t tile = tile_pages(page_tokens), share = round_up(ceil_div(pages, std::int64_t{most_pieces}), tile);
  return share > 2 * tile ? share : 2 * tile;
}
KVX_HD constexpr int tier_pieces(std::int64_t pages, int page_tokens) {
  return static_cast<int>(ceil_div(pages, tier_piece(pages, page_tokens)));
}
/// No zone of at most so many pages has more pieces.
KVX_HD constexpr int most_tier_pieces(std::int64_t pages, int page_tokens) {
  return pages <= std::int64_t{2} * most_pieces * tile_pages(page_tokens) ? tier_pieces(pages, page_tokens) : most_pieces;
}
static_assert(tier_pieces(2045, 64) == 64 && tier_pieces(16384, 64) == 128 && most_tier_pieces(5000, 64) == 128 && tier_pieces(0, 16) == 0);

/// Arrays that the blocks of a unit share.
struct tier_scratch {
  partial_results partial;
  int pieces = 0;

  tier_scratch() = default;
  tier_scratch(scratch_parts& parts, std::int64_t units, std::int64_t group, std::int64_t longest, page_shape page) {
    pieces = most_tier_pieces(ceil_div(longest, std::int64_t{page.tokens}), page.tokens);
    partial.rows = tier_heads;
    partial.pitch = static_cast<int>(round_up(page.value_dim, 4));
    const std::int64_t slots = units * ceil_div(group, tier_heads) * pieces;
    partial.states = parts.take<float2>(slots * partial.rows);
    partial.sums = parts.take<float>(slots * partial.rows * partial.pitch);
  }
};

/// What the kernel is told.
template <class Members>
struct tier_call {
  device_batch batch;
  zones cut;
  page_shape page;
  int page_shift = 0;
  Members members;
  rerank_input in;
  rerank_output ranked;
  coded_value_columns values;
  bool coded = false;
  bool tail = false;
  bool skips = false;
  float skip = 0;
  float scale = 1;
  float soft_cap = 0;
  std::uint64_t seed = 0;
  float levels[16] = {};
  float level_unit = 0;
  softmax_state* states = nullptr;                                                       // (units, G)
  float* sums = nullptr;                                                                 // (units, G, Dv)
  partial_results partial;
  unsigned* tickets = nullptr;                                                           // (units, tiles of G)
  int pieces = 0;
};

/// A block's dynamic shared memory: a tile, in whose place the sums of the block's rows lie afterwards, and behind it vectors of its heads.
struct tier_shared {
  union {
    tier_tile tile;
    float all[quad_floats];
  };

  /// (heads, Dv)
  __device__ float* vectors() { return reinterpret_cast<float*>(this + 1); }
  static constexpr std::size_t bytes(int value_dim) {
    return sizeof(tier_shared) + sizeof(float) * tier_heads * static_cast<std::size_t>(value_dim);
  }
};

/// Pages [first, last) of a unit's zone, which has `count` members: the softmax and sums of their tails and coded members, left in a slot.
template <int Threads, int Bits, class Members>
__device__ __forceinline__ void attend_tier_piece(const tier_call<Members>& call, tier_shared& shared, const unit_pages& of,
                                                  std::int32_t count, int first_head, std::int64_t first, std::int64_t last,
                                                  std::int64_t slot) {
  __shared__ tier_softmax heads;
  __shared__ tier_source<decltype(call.members.of_unit(of))> from;
  __shared__ sign_words signs, none;
  __shared__ float levels[16];
  __shared__ block_scratch<unsigned, Threads> scratch;
  const int tid = static_cast<int>(threadIdx.x), warp = warp_of_thread(), lane = lane_of_thread(), G = call.ranked.group;
  const int D = call.page.key_dim, Dv = call.page.value_dim;
  const std::int64_t unit = of.unit;
  if (tid == 0) {
    from.members = call.members.of_unit(of);
    from.ids = of.ids;
    from.dots = call.in.page_dots + unit * call.in.page_pitch * G;
    from.marks = call.ranked.marks + unit * call.ranked.pitch;
    from.logits = call.ranked.logits_of(unit);
    from.scores = call.ranked.scores + unit * call.ranked.pitch;
    from.pitch = call.ranked.pitch;
    from.least = call.skip / static_cast<float>(count > 0 ? count : 1);
    from.first_head = first_head;
    from.group = G;
    from.coded = call.coded;
    from.tail = call.tail;
    from.skips = call.skips;
  }
  if (tid < 16) levels[tid] = call.levels[tid];
  fill_sign_words(call.seed, Dv, signs);
  if (tid < sign_words::most) none.words[tid] = 0;
  if (warp < tier_heads) {
    float largest = 0;
    for (int d = lane; first_head + warp < G && d < D; d += warp_lanes) {
      const float x = size_of(call.in.plain[(unit * G + first_head + warp) * D + d]);
      if (x > largest) largest = x;
    }
    largest = warp_max(largest);
    if (lane == 0) {
      heads.page_units[warp] = static_cast<double>(call.scale) * power_of_two(exponent_of(largest) + 1);
      heads.max[warp] = -infinity;
      heads.sum[warp] = 0;
    }
  }
  __syncthreads();

  const quad_grid grid(Dv, Threads);
  quad_sums codes, means;
  int read = 0;  // coded values of the piece
  const int each = tile_pages(call.page.tokens);
  for (std::int64_t begin = first; begin < last; begin += each) {
    const int n = static_cast<int>(last - begin < each ? last - begin : each);
    const int members = load_tier_tile<Threads>(from, begin, n, shared.tile, heads);
    score_tier_tile<Threads>(from, n, call.soft_cap, shared.tile);
    weigh_tier_tile<Threads>(n, shared.tile, heads);
    if constexpr (Bits > 0) {
      const int taken = take_values<Threads>(from, members, shared.tile, scratch);
      codes.scale(heads.factor);
      add_coded_values<Bits>(grid, shared.tile, taken, of.first + begin, call.page_shift, call.values, of.head, Dv, levels, codes);
      read += taken;
    }
    means.scale(heads.factor);
    add_page_means(grid, shared.tile, n, call.values, of.head, Dv, means);
    __syncthreads();
  }

  float* const vectors = shared.vectors();
  if (read > 0) {
    codes.template finish<Threads>(grid, Dv, shared.all, [&](int h, int d, float sum) { vectors[h * Dv + d] = call.level_unit * sum; });
    __syncthreads();
    if (warp < tier_heads) {  // the rotation is its own inverse, but for the signs, which come last
      float* const x = vectors + warp * Dv;
      warp_rotate(
          Dv, none, [&](int d, int i) { return x[d + 32 * i]; },
          [&](int d, int i, float y) { x[d + 32 * i] = flip(y, signs.of(d / 32 + i, d % 32)); });
    }
  } else {
    for (int i = tid; i < tier_heads * Dv; i += Threads) vectors[i] = 0;
  }
  means.template finish<Threads>(grid, Dv, shared.all, [&](int h, int d, float sum) {
    if (first_head + h < G) call.partial.sums_of(slot, h)[d] = sum + vectors[h * Dv + d];
  });
  if (tid < tier_heads) *call.partial.state_of(slot, tid) = float2{heads.max[tid], heads.sum[tid]};
}

/// One block a piece of a unit's pages and four of its heads; the last block of these brings the pieces together with the residents.
template <int Threads, int Bits, class Members>
__global__ void __launch_bounds__(Threads, 2) attend_tiers_kernel(const tier_call<Members> call) {
  __shared__ unit_pages of;
  __shared__ std::int32_t count;
  const int G = call.ranked.group, tiles = (G + tier_heads - 1) / tier_heads, Dv = call.page.value_dim;
  const std::int64_t slot = blockIdx.x, unit_tile = slot / call.pieces, unit = unit_tile / tiles;
  const int piece = static_cast<int>(slot % call.pieces), first_head = static_cast<int>(unit_tile % tiles) * tier_heads;
  if (threadIdx.x == 0) {
    const token_zone zone = zone_of(call.batch, call.cut, call.page.tokens, unit / call.ranked.heads);
    const std::int64_t first = zone.begin >> call.page_shift;
    of = {unit, unit % call.ranked.heads, first, ceil_div(zone.end, std::int64_t{call.page.tokens}) - first,
          zone.entry >= 0 ? call.batch.items[zone.entry].pages + first : nullptr};
    count = zone.end > zone.begin ? call.members.count_of(call.batch, call.in, call.ranked, unit) : -1;
  }
  __syncthreads();
  if (count < 0) return;
  const std::int64_t pages = of.count, each = tier_piece(pages, call.page.tokens), first = piece * each;
  if (first >= pages) return;
  std::byte* const memory = dynamic_shared<std::byte>();
  attend_tier_piece<Threads, Bits>(call, *reinterpret_cast<tier_shared*>(memory), of, count, first_head, first,
                                   first + each < pages ? first + each : pages, slot);
  const int pieces = tier_pieces(pages, call.page.tokens);
  if (!arrives_last(call.tickets + unit_tile, static_cast<unsigned>(pieces))) return;

  const int rows = G - first_head < tier_heads ? G - first_head : tier_heads;
  bool weighs = false;
  for (int i = static_cast<int>(threadIdx.x); i < pieces * rows; i += Threads)
    weighs = weighs || call.partial.state_of(slot - piece + i / rows, i % rows)->y != 0;
  if (__syncthreads_or(weighs ? 1 : 0) == 0) return;  // nothing changes, bit for bit
  softmax_state* const states = call.states + unit * G + first_head;
  float* const sums = call.sums + (unit * G + first_head) * Dv;
  merge_partials<Threads>(
      memory, call.partial, slot - piece, pieces, rows, Dv, {states, sums, Dv}, [&](int r, int d, float x, float) { sums[r * Dv + d] = x; },
      [&](int r, float max, float sum) { states[r] = state_of(max, sum); });
}

/// Tickets that attend_tiers needs: zeros before the first call, left as zeros by every call.
constexpr std::int64_t attend_tiers_tickets(std::int64_t units, std::int64_t group) {
  return units * ceil_div(group, std::int64_t{tier_heads});
}

/// Takes coded rows and the tail into the partial attention of every unit.
///
/// what        states and sums become those of what they stood for and of: the candidates that have no mark, by the logits of their key
///             codes and their value codes; and, for each page, what is left of it, as often as it is, by the mean of its logits and the
///             mean of the page's values. Without coded rows, candidates that have no mark stay in the tail
/// shapes      states (units, G); sums (units, G, Dv), undivided; ranked: logits, marks and scores of a reranking of `members`,
///             tier_members or page_tier_members; in: its input, with page_dots of every page of the zones; batch: under the page ids of
///             the columns
/// units       logits in nats
/// cost        one launch; exponentials of G (C + pages) logits, V codes of the candidates that matter (tier_options::skip), a mean for
///             each page, both once for every four heads; splits over blocks by pages
/// exactness   float sums in an order that depends on the zone alone: the same bits on every run and launch. Without the rounding of
///             weights that the host's has. A unit all of whose tokens are taken out stays as it is, bit for bit. Values are skipped by the
///             scores of the reranking, which leave the tail out: what is skipped holds less than skip / candidates of all weight. With
///             another rule than the softmax sum, or a soft cap, every V is read
/// errors      usage_error: pages of more than 1,024 tokens
/// source      ours: docs/tiers.md
template <int Bits, class Members = tier_members>
void attend_tiers(const device& exec, page_shape page, const zones& cut, std::uint64_t seed, const device_batch& batch,
                  const Members& members, const rerank_input& in, const rerank_output& ranked, group_rule rule, const value_columns& values,
                  const tier_options& options, float soft_cap, softmax_state* states, float* sums, const tier_scratch& scratch,
                  unsigned* tickets, call_site where = call_site::here()) {
  require_range("attend_tiers: tokens of a page", page.tokens, 1, most_tile_members, where);
  require_range("attend_tiers: value_dim", page.value_dim, 1, 576, where);
  tier_call<Members> call;
  call.batch = batch;
  call.cut = cut;
  call.page = page;
  while ((1 << call.page_shift) < page.tokens) ++call.page_shift;
  call.members = members;
  call.in = in;
  call.ranked = ranked;
  call.values = coded_value_columns_of(values);
  call.coded = Bits > 0 && options.coded;
  call.tail = options.tail;
  call.skips = options.skip > 0 && soft_cap <= 0 && rule.by == group_rule::kind::softmax_sum;
  call.skip = options.skip;
  call.scale = logit_scale(in.scale, page.key_dim);
  call.soft_cap = soft_cap;
  call.seed = seed;
  if constexpr (Bits > 0) {
    const value_levels levels = value_levels_of<Bits>(page.value_dim);
    for (std::size_t i = 0; i < levels.level.size(); ++i) call.levels[i] = levels.level[i];
    call.level_unit = levels.unit;
  }
  call.states = states;
  call.sums = sums;
  call.partial = scratch.partial;
  call.pieces = scratch.pieces;
  call.tickets = tickets;
  const std::int64_t blocks = attend_tiers_tickets(ranked.units(), ranked.group) * call.pieces;
  require_range("attend_tiers: blocks", blocks, 0, INT32_MAX, where);
  launch(exec, {dim3(static_cast<unsigned>(blocks)), tier_threads, tier_shared::bytes(page.value_dim)},
         attend_tiers_kernel<tier_threads, Bits, Members>, call);
}

}  // namespace kvx
