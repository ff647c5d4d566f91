#pragma once
// Dots of page means with the queries of every unit, for a reranker by codes behind a search that leaves none.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/index/cuda/page_dots.cuh>
#include <kvx/index/sign_sums.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/token_zone.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/cuda/code_columns.cuh>
#include <kvx/sketch/key_sketch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Pages of a block.
inline constexpr int page_term_threads = 128, page_term_pages = 64;

struct page_term_arguments {
  device_batch batch;
  code_columns columns;
  rerank_input in;
  rerank_shape shape;
  float* page_dots = nullptr;
  int dim = 0;
  int page_shift = 0;
  unsigned blocks = 1;
  bool whole = false;
  zones cut;
};

/// 4 Words heads from `first_head` on as page dots want them.   queries (round_up(D, 16), 4 Words), 0 in its padding
template <int Threads, int Words>
__device__ __forceinline__ void load_page_queries(const float* plain, int group, int first_head, int dim, float* queries) {
  constexpr int heads = 4 * Words;
  for (int h = warp_of_thread(); h < heads; h += Threads / warp_lanes) {
    const float* const q = plain + std::int64_t{first_head + h} * dim;
    const bool exists = first_head + h < group;
    float largest = 0;
    for (int d = lane_of_thread(); exists && d < dim; d += warp_lanes) {
      if (size_of(q[d]) > largest) largest = size_of(q[d]);
    }
    const double power = power_of_two(-exponent_of(warp_max(largest)) - 1);
    for (int d = lane_of_thread(); d < (dim + 15) / 16 * 16; d += warp_lanes)
      queries[d * heads + h] = exists && d < dim ? page_query_component(q[d], power) : 0.0f;
  }
}

template <int Threads, int Words>
__global__ void __launch_bounds__(Threads) page_terms_kernel(page_term_arguments a) {
  __shared__ __align__(16) float queries[576 * 4 * Words];
  __shared__ const std::int32_t* pages;  // of the sequence
  __shared__ std::int64_t last_token;    // -1: none
  const std::int64_t unit = blockIdx.x / a.blocks, first = a.in.first_page + std::int64_t{blockIdx.x % a.blocks} * page_term_pages;
  if (threadIdx.x == 0) {
    if (a.whole) {
      const token_zone z = zone_of(a.batch, a.cut, 1 << a.page_shift, unit / a.shape.heads);
      pages = z.entry >= 0 ? a.batch.items[z.entry].pages : nullptr;
      last_token = z.begin < z.end ? z.end - 1 : -1;
    } else {
      rerank_unit u;
      u.read(a.batch, a.in, a.shape, unit);
      pages = u.pages;
      last_token = u.count > 0 ? a.in.ids[unit * a.in.id_pitch + u.count - 1] : -1;
    }
  }
  __syncthreads();
  const std::int64_t last = (last_token >> a.page_shift) + 1;
  if (first >= last) return;
  const int G = a.shape.group, count = static_cast<int>(last - first < page_term_pages ? last - first : page_term_pages);
  float* const out = a.page_dots + (unit * a.in.page_pitch + (first - a.in.first_page)) * G;
  for (int g0 = 0; g0 < G; g0 += 4 * Words) {
    load_page_queries<Threads, Words>(a.in.plain + unit * G * a.dim, G, g0, a.dim, queries);
    __syncthreads();
    const auto mean_of = [&](int p) { return code_of(a.columns, pages[first + p], unit % a.shape.heads).means; };
    const auto finish = [&](int p, int h, float dot) {
      if (g0 + h < G) out[std::int64_t{p} * G + g0 + h] = dot;
    };
    page_dots<Threads, Words>(queries, a.dim, count, mean_of, finish);
    __syncthreads();
  }
}

/// Fills the page_dots of a step: of every page from in.first_page to that of a unit's last candidate, or of the whole zone if `whole` says
/// how sequences are divided; then candidates are not read.
///
/// shapes      page_dots (units, in.page_pitch, G) in device memory; see rerank_input for the others; batch: items under the page ids of
///             the columns; longest: tokens of a sequence at most
/// exactness   the bits of the host's
/// cost        one launch; reads the page means of the zone
inline void leave_page_dots(const device& exec, page_shape page, const key_columns& columns, const device_batch& batch,
                            const rerank_input& in, const rerank_shape& shape, float* page_dots, const zones* whole = nullptr,
                            call_site where = call_site::here()) {
  require(is_valid(page), "leave_page_dots: no valid page shape", where);
  require_range("leave_page_dots: heads of the group", shape.group, 1, 128, where);
  page_term_arguments a;
  a.batch = batch;
  a.columns = code_columns_of(columns);
  a.in = in;
  a.shape = shape;
  a.page_dots = page_dots;
  a.dim = page.key_dim;
  a.whole = whole != nullptr;
  if (whole != nullptr) a.cut = *whole;
  a.page_shift = page_shift_of(page.tokens);
  const std::int64_t blocks = ceil_div(in.page_pitch, page_term_pages);
  require_range("leave_page_dots: blocks", blocks * shape.units(), 0, INT32_MAX, where);
  a.blocks = static_cast<unsigned>(blocks);
  const launch_shape launched = {.grid = dim3(static_cast<unsigned>(blocks * shape.units())), .threads = page_term_threads};
  if (shape.group <= 4) return launch(exec, launched, page_terms_kernel<page_term_threads, 1>, a);
  if (shape.group <= 8) return launch(exec, launched, page_terms_kernel<page_term_threads, 2>, a);
  launch(exec, launched, page_terms_kernel<page_term_threads, 4>, a);
}

}  // namespace kvx
