#pragma once
// Dense attention of many query rows (prompts): matrix products in panels, bound by arithmetic.

#include <kvx/attend/host/dense_unit.hpp>

#include <algorithm>
#include <cstdint>

namespace kvx::host_dense {

/// Where the floats of a tile lie in a worker's scratch.
///
/// shapes      W rows a panel, S panels a tile; queries (S, D, W), sums (S, Dv8, W), keys (72, key pitch), values (72, value pitch),
///             scores (72, W), max and sum (S, W), low, high, factor (W); Dv8: Dv rounded up to 8
struct tile_scratch {
  float *queries, *sums, *keys, *values, *scores, *max, *sum, *low, *high, *factor;

  tile_scratch(float* at, std::int64_t key_dim, std::int64_t value_dim) {
    const auto take = [&](std::int64_t n) {
      float* const p = at;
      at += n;
      return p;
    };
    queries = take(panel_rows * key_dim);
    sums = take(panel_rows * round_up(value_dim, simd::column_step));
    keys = take(panel_block * simd::key_pitch(key_dim));
    values = take(panel_block * float_pitch(value_dim));
    scores = take(panel_block * 2 * simd::padding);
    max = take(panel_rows);
    sum = take(panel_rows);
    low = take(panel_rows);
    high = take(panel_rows);
    factor = take(panel_rows);
  }
};

/// The weighted sum of a block whose V holds NaN or infinity: 0 * NaN is NaN, so a masked weight may not touch it.
inline void careful_weighted_sum(const tile_scratch& x, const float* values, std::int64_t pitch, int n, int dim, int width, bool masked,
                                 float* sums) {
  for (int d = 0; d < dim; ++d) {
    for (int w = 0; w < width; ++w) {
      float s = sums[d * width + w] * x.factor[w];
      for (int t = 0; t < n; ++t) {
        const auto place = static_cast<float>(t);
        if (!masked || (place >= x.low[w] && place < x.high[w])) s += values[t * pitch + d] * x.scores[t * width + w];
      }
      sums[d * width + w] = s;
    }
  }
}

/// Computes one tile in panels: K and V of a block are converted to float once, then per panel
/// scores (keys, W) = K q, a softmax down the columns, sums (Dv, W) += V^T weights: no transposition, no horizontal sum.
///
/// shapes      scratch: panel_floats(D, Dv) floats
/// exactness   float sums in an order that depends on the unit alone; exp within 2 units in the last place
/// cost        blocks that no row of a panel sees are skipped
/// source      Dao et al. 2022, with queries across lanes
template <class E, class T>
void attend_panels(const dense_call<E, T>& call, const dense_job& job, const dense_unit& u, float* scratch) {
  const simd::row_conversions<E>& convert = call.kernels->template conversions<E>();
  const int D = call.rows.key_dim, Dv = call.rows.value_dim;
  const simd::panel_kernels& kernel = call.kernels->panels(D);
  const int W = kernel.width, columns = static_cast<int>(round_up(Dv, simd::column_step));
  const std::int64_t kp = simd::key_pitch(D), vp = float_pitch(Dv);
  const std::int64_t rows = u.last_row - u.first_row;
  const std::int64_t panels = ceil_div(rows, W);
  const tile_scratch x(scratch, D, Dv);

  std::fill_n(x.queries, panels * W * D, 0.0f);
  std::fill_n(x.sums, panels * W * columns, 0.0f);
  std::fill_n(x.keys, panel_block * kp, 0.0f);
  std::fill_n(x.values, panel_block * vp, 0.0f);
  std::fill_n(x.max, panels * W, -infinity);
  std::fill_n(x.sum, panels * W, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = u.first_row + r;
    const T* const from = call.q.at(job.item.first + row / call.group, u.head * call.group + row % call.group, 0);
    float* const to = x.queries + r / W * W * D + r % W;
    for (int d = 0; d < D; ++d) to[d * W] = to_float(from[d * call.q.strides[2]]) * call.scale;
  }

  const auto position = [&](std::int64_t r) { return position_of(job, u.first_row + r, call.group); };
  key_blocks blocks(call.options, position(0), position(rows - 1), u.keys, simd::block_tokens);
  for (key_block block = blocks.next(); block.n > 0; block = blocks.next()) {
    const E* addresses[2][simd::block_tokens];
    row_addresses(call.rows.key, job.item, call.page_shift, u.head, block.begin, block.n, addresses[0]);
    row_addresses(call.rows.value, job.item, call.page_shift, u.head, block.begin, block.n, addresses[1]);
    for (int t = 0; t < block.n; ++t) {
      convert.to_floats(addresses[0][t], D, x.keys + t * kp);
      convert.to_floats(addresses[1][t], Dv, x.values + t * vp);
    }
    const bool finite = call.kernels->all_finite(x.values, block.n * vp);

    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t first = p * W, last = std::min(first + W, rows) - 1;
      const key_range of_first = visible(call.options, position(first), block.zone);
      const key_range of_last = visible(call.options, position(last), block.zone);
      const std::int64_t begin = std::max(of_first.begin, block.begin), end = std::min(of_last.end, block.begin + block.n);
      if (begin >= end) continue;
      const bool masked = of_last.begin > begin || of_first.end < end;
      if (masked) {
        for (int w = 0; w < W; ++w) {
          const key_range r = first + w <= last ? visible(call.options, position(first + w), block.zone) : key_range{};
          x.low[w] = static_cast<float>(std::clamp(r.begin, begin, end) - begin);
          x.high[w] = static_cast<float>(std::clamp(r.end, begin, end) - begin);
        }
      }
      const std::int64_t skip = begin - block.begin;
      const auto n = static_cast<int>(end - begin);
      float* const sums = x.sums + first * columns;
      kernel.scores(x.keys + skip * kp, static_cast<int>(round_up(n, simd::column_step)), D, x.queries + first * D, x.scores);
      kernel.softmax(x.scores, n, call.options.soft_cap, masked ? x.low : nullptr, x.high, x.max + first, x.sum + first, x.factor);
      if (finite) {
        kernel.weighted_sum(x.values + skip * vp, vp, n, columns, x.scores, x.factor, sums);
      } else {
        careful_weighted_sum(x, x.values + skip * vp, vp, n, Dv, W, masked, sums);
      }
    }
  }

  float natural[simd::long_key_pitch];                                                              // (Dv)
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* const from = x.sums + r / W * W * columns + r % W;
    for (int d = 0; d < Dv; ++d) natural[d] = from[d * W];
    take_row(call, job, u, u.first_row + r, natural, {x.max[r], x.sum[r]});
  }
}

}  // namespace kvx::host_dense
