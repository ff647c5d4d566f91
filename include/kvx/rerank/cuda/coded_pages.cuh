#pragma once
// Pages ranked by the codes of their members on the device: the logits of each page's best member, from the codes of all tokens of a zone.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/page_search.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/cuda/code_logits.cuh>
#include <kvx/sketch/key_sketch.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Threads of a block that looks at codes, and tokens at least: as many whole blocks of the index as hold these.
inline constexpr int coded_page_threads = 256, coded_page_tokens = 256;

/// What the kernel is told.
///
/// tokens      of a block of threads: whole blocks of the index
/// chunks      blocks of threads of a unit
template <class Call>
struct coded_pages_arguments {
  Call search;
  code_reading codes;
  int tokens = coded_page_tokens;
  int chunks = 1;
};

/// Logits of the best members of some pages of one unit, NaN for a page of which no key can be found.
template <int Threads, int Bits, int Heads, bool OneWeight, class Call>
__global__ void __launch_bounds__(Threads, Heads <= 4 ? 2 : 1) coded_pages_kernel(coded_pages_arguments<Call> a) {
  __shared__ page_zone zone;
  __shared__ code_units units;
  __shared__ std::int8_t table[Bits == 8 ? 512 : 1];
  const Call& call = a.search;
  const std::int64_t unit = blockIdx.x / a.chunks, head = unit % call.heads;
  if (threadIdx.x == 0) zone = page_zone_of(call, unit);
  __syncthreads();
  const int P = call.page_tokens, G = call.group;
  const auto first = static_cast<int>(blockIdx.x % static_cast<unsigned>(a.chunks)) * a.tokens;  // token of the sequence
  const auto begin = static_cast<int>(zone.first * P), end = static_cast<int>((zone.first + zone.count) * P);
  if (!zone.is_searched() || first >= end) return;
  auto* const whole = dynamic_shared<std::int8_t>();
  auto* const logits = reinterpret_cast<float*>(whole + code_query_bytes<Heads>(a.codes));  // (Heads, tokens)
  load_code_queries<Threads, Heads>(a.codes, unit, whole, units);
  if constexpr (Bits == 8) fill_signed_levels(a.codes.layout, static_cast<int>(threadIdx.x), Threads, table);
  __syncthreads();
  const signed_levels<Bits> levels(a.codes.layout, table);
  for (int g0 = 0; g0 < G; g0 += Heads) {
    for (int turn = 0; turn < a.tokens; turn += Threads) {
      const int t = turn + static_cast<int>(threadIdx.x);
      const bool valid = t < a.tokens && first + t >= begin && first + t < end;
      const token_code<Bits> code(a.codes, unit, zone.pages, valid ? first + t : -1);
      code.template logits<Heads, OneWeight>(a.codes, g0, whole, levels, units, [&](int g, float logit) {
        if (valid) logits[(g - g0) * a.tokens + t] = logit;
      });
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.tokens / P * Heads; i += Threads) {
      const int own = i / Heads, h = i % Heads;                                           // page of the chunk
      const std::int64_t j = first / P + own - zone.first;
      if (j < 0 || j >= zone.count || g0 + h >= G) continue;
      const packed_page packed = call.packed(zone.pages[zone.first + j], head);
      const float* const of_block = logits + h * a.tokens + own * P / call.index.block * call.index.block;
      float most = -infinity;
      for (int m = 0; m < P; ++m) {
        const float logit = of_block[packed.member(m)];
        if (logit > most) most = logit;  // NaN changes nothing
      }
      call.to.logits[(unit * G + g0 + h) * call.to.page_pitch + j] = most > -infinity ? most : quiet_nan;
    }
    __syncthreads();
  }
}

/// Leaves the logits of all pages of every unit's zone in call.to.logits: what search_pages ranks coded_member by.
///
/// what        each head's logit of a page is the best of its members' by their codes, as rsq_ip states it
/// shapes      in: rotated and plain queries, scale, and page_dots of the whole zone where the sketch has a centre; columns of the layer
/// cost        one launch: reads bits D / 8 + 2 D / m bytes a token of the zone
/// exactness   the host's bits
/// errors      usage_error for shapes that do not fit
template <int Bits, class Call>
void score_coded_pages(const device& exec, const Call& call, const key_sketch& sketch, const key_columns& columns, const rerank_input& in,
                       call_site where = call_site::here()) {
  require_range("score_coded_pages: bits of the sketch", sketch.bits, Bits, Bits, where);
  require_range("score_coded_pages: heads of the group", call.group, 1, most_scored_heads, where);
  require_range("score_coded_pages: tokens of a block", call.index.block, 1, 1024, where);
  require(!sketch.centre || in.page_dots != nullptr, "score_coded_pages: page_dots are null, and the sketch has a centre", where);
  coded_pages_arguments<Call> a;
  a.search = call;
  a.codes = code_reading_of<Bits>(sketch, {call.page_tokens, call.rows.key_dim, call.rows.value_dim}, columns, in, call.heads, call.group);
  const int block = call.index.block;
  a.tokens = block < coded_page_tokens ? coded_page_tokens / block * block : block;
  const std::int64_t chunks = ceil_div(call.longest, a.tokens);
  require_range("score_coded_pages: tokens", chunks * a.tokens, 0, INT32_MAX, where);
  require_range("score_coded_pages: blocks", chunks * call.units(), 0, INT32_MAX, where);
  a.chunks = static_cast<int>(chunks);
  const auto run = [&]<int Heads>() {
    const launch_shape shape = {
        .grid = dim3(static_cast<unsigned>(chunks * call.units())),
        .threads = coded_page_threads,
        .shared_bytes = sizeof(float) * static_cast<std::size_t>(Heads * a.tokens) + code_query_bytes<Heads>(a.codes)};
    if (sketch.weights == key_sketch::weighting::key) {
      launch(exec, shape, coded_pages_kernel<coded_page_threads, Bits, Heads, true, Call>, a);
    } else {
      launch(exec, shape, coded_pages_kernel<coded_page_threads, Bits, Heads, false, Call>, a);
    }
  };
  if (call.group == 1) return run.template operator()<1>();
  if (call.group <= 4) return run.template operator()<4>();
  run.template operator()<8>();
}

}  // namespace kvx
