#pragma once
// Logits of tokens from their codes, one token a thread: queries as whole numbers, codes where they lie, sums as the host has them.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/group_rule.cuh>
#include <kvx/index/sign_sums.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/cuda/code_sums.cuh>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/cuda/whole_query.cuh>
#include <kvx/sketch/key_sketch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// How the codes of one layer are read for the queries of a step's units.
///
/// in          its queries, its dots of page means where keys are coded relative to those, its scale
struct code_reading {
  code_columns columns;
  code_layout layout;
  rerank_input in;
  int heads = 1;
  int group = 1;
  int page_shift = 0;
  bool centre = false;
  float scale = 1;
  float level_unit = 1;
};

template <int Bits>
code_reading code_reading_of(const key_sketch& sketch, page_shape page, const key_columns& columns, const rerank_input& in, int heads,
                             int group) {
  const whole_levels levels = whole_levels_of<Bits>(sketch, page.key_dim);
  code_reading r;
  r.columns = code_columns_of(columns);
  r.layout = code_layout_of<Bits>(sketch, page.key_dim, page.tokens, levels);
  r.in = in;
  r.heads = heads;
  r.group = group;
  r.page_shift = page_shift_of(page.tokens);
  r.centre = sketch.centre;
  r.scale = logit_scale(in.scale, page.key_dim);
  r.level_unit = levels.unit;
  return r;
}

/// Heads of the queries in shared memory, a multiple of what one turn takes.
template <int Heads>
KVX_HD constexpr int padded_rerank_heads(int group) {
  return (group + Heads - 1) / Heads * Heads;
}

/// Bytes of the queries of a unit in shared memory.
template <int Heads>
KVX_HD constexpr std::size_t code_query_bytes(const code_reading& a) {
  return static_cast<std::size_t>(padded_rerank_heads<Heads>(a.group)) * static_cast<std::size_t>(a.layout.chunks() * code_chunk_dims);
}

/// What a block knows of its queries.
struct code_units {
  float units[most_scored_heads];        ///< nats for one unit of a code's sum
  double page_units[most_scored_heads];  ///< nats for one unit of a page dot
};

/// Brings the queries of a unit into whole numbers.
///
/// shapes      whole (padded heads / Heads, chunks, Heads, 64), 0 in its padding; behind a barrier
template <int Threads, int Heads>
__device__ __forceinline__ void load_code_queries(const code_reading& a, std::int64_t unit, std::int8_t* whole, code_units& to) {
  constexpr int most = 576 / warp_lanes;
  const int G = a.group, D = a.layout.dim, chunks = a.layout.chunks(), lane = lane_of_thread();
  for (int g = warp_of_thread(); g < padded_rerank_heads<Heads>(G); g += Threads / warp_lanes) {
    const float* const rotated = a.in.rotated + (unit * G + g) * D;
    float x[most], largest = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int d = lane + warp_lanes * i;
      x[i] = g < G && d < D ? rotated[d] : 0.0f;
      finite = finite && size_of(x[i]) <= largest_float;
      if (size_of(x[i]) > largest) largest = size_of(x[i]);
    }
    const query_scale s = warp_scale_of(largest, finite);
    std::int8_t* const row = whole + ((g / Heads * chunks) * Heads + g % Heads) * code_chunk_dims;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const int d = lane + warp_lanes * i;
      if (d < chunks * code_chunk_dims)
        row[d / code_chunk_dims * Heads * code_chunk_dims + d % code_chunk_dims] = whole_component(x[i], s.inverse);
    }
    if (g >= G) continue;
    if (lane == 0) to.units[g] = a.scale * s.unit * a.level_unit;
    if (!a.centre) continue;
    const float* const plain = a.in.plain + (unit * G + g) * D;
    float page = 0;
    for (int d = lane; d < D; d += warp_lanes) {
      if (size_of(plain[d]) > page) page = size_of(plain[d]);
    }
    page = warp_max(page);
    if (lane == 0) to.page_units[g] = static_cast<double>(a.scale) * power_of_two(exponent_of(page) + 1);
  }
}

/// Lanes whose candidates lie in one page: what is the page's is read by the first of them.
struct page_run {
  int leader;
  bool leads;

  __device__ __forceinline__ explicit page_run(std::int64_t page) {
    const int lane = lane_of_thread();
    const std::int64_t before = __shfl_up_sync(all_lanes, page, 1u);
    leads = lane == 0 || before != page;
    const unsigned first = __ballot_sync(all_lanes, leads ? 1 : 0);
    leader = 31 - __clz(static_cast<int>(first & (0xffffffffu >> (31 - lane))));
  }
};

/// The code of one token a thread. Whole warps call.
template <int Bits>
class token_code {
 public:
  /// pages       of the sequence
  /// id          of the token; -1: none
  __device__ __forceinline__ token_code(const code_reading& a, std::int64_t unit, const std::int32_t* pages, std::int32_t id)
      : valid_(id >= 0), page_(valid_ ? id >> a.page_shift : -1), run_(page_) {
    std::int32_t column_page = run_.leads && valid_ ? pages[page_] : 0;
    column_page = __shfl_sync(all_lanes, column_page, run_.leader);
    const int slot = valid_ ? id & (a.layout.page_tokens - 1) : 0;
    const page_code<false> code = code_of(a.columns, column_page, unit % a.heads);
    signs_ = code.signs + slot;
    magnitudes_ = code.magnitudes + std::int64_t{slot} * (Bits - 1) * a.layout.bytes;
    weights_ = code.weights + std::int64_t{slot} * a.layout.weights;
    dots_ = a.centre && valid_ ? a.in.page_dots + (unit * a.in.page_pitch + (page_ - a.in.first_page)) * a.group : nullptr;
  }

  /// Logits of heads [g0, g0 + Heads): each(g, logit) in all threads, undefined where there is no token.
  template <int Heads, bool OneWeight, class Each>
  __device__ __forceinline__ void logits(const code_reading& a, int g0, const std::int8_t* whole, const signed_levels<Bits>& levels,
                                         const code_units& units, const Each& each) const {
    float sums[Heads] = {};
    if (valid_) {
      code_sums<Bits, Heads, OneWeight>(a.layout, levels, signs_, magnitudes_, weights_,
                                        whole + std::int64_t{g0} * a.layout.chunks() * code_chunk_dims, sums);
    }
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const int g = g0 + h;
      if (g >= a.group) continue;
      float term = 0;
      if (a.centre) {
        if (run_.leads && valid_) term = static_cast<float>(units.page_units[g] * static_cast<double>(dots_[g]));
        term = __shfl_sync(all_lanes, term, run_.leader);
      }
      each(g, multiply_add(units.units[g], sums[h], term));
    }
  }

 private:
  bool valid_;
  std::int64_t page_;
  page_run run_;
  const std::uint8_t* signs_;
  const std::uint8_t* magnitudes_;
  const half* weights_;
  const float* dots_;
};

}  // namespace kvx
