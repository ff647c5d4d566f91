#pragma once
// Dense attention of a few query rows (decoding): one pass over K and V for all of them, bound by memory.

#include <kvx/attend/host/dense_unit.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvx::host_dense {

/// Tokens of a block: K and V rows of two blocks, the one computed and the one prefetched, stay in the L1 cache.
inline int block_of(std::int64_t row_bytes) {
  constexpr std::int64_t block_bytes = 16384;
  return static_cast<int>(std::clamp<std::int64_t>(block_bytes / row_bytes / 16 * 16, 16, simd::block_tokens));
}

/// Computes one unit row by row: per block the scores of all rows, an online softmax, the weighted sum of V.
///
/// shapes      scratch: few_floats(rows, D, Dv) floats
/// exactness   float sums in an order that depends on the unit alone; exp within 2 units in the last place
/// cost        every K and V component is read once from memory, the next block prefetched
/// source      Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022 (blocks)
template <class E, class T>
void attend_few(const dense_call<E, T>& call, const dense_job& job, const dense_unit& u, float* scratch) {
  const simd::row_kernels<E>& kernel = call.kernels->template rows<E>();
  const int D = call.rows.key_dim, Dv = call.rows.value_dim;
  const std::int64_t qp = float_pitch(D), vp = float_pitch(Dv);
  const auto rows = static_cast<int>(u.last_row - u.first_row);
  const int lanes = call.kernels->lanes;
  float* const q = scratch;                                                                         // (rows, qp)
  float* const sums = q + rows * qp;                                                                // (rows, vp)
  float* const scores = sums + rows * vp;                                                           // (rows, 64)
  float* const max = scores + rows * simd::block_tokens;                                            // (rows)
  float* const sum = max + round_up(rows, simd::padding);                                           // (rows)
  float* const factor = sum + round_up(rows, simd::padding);                                        // (rows)

  std::fill_n(q, rows * (qp + vp), 0.0f);
  std::fill_n(max, rows, -infinity);
  std::fill_n(sum, rows, 0.0f);
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = u.first_row + r;
    const T* const from = call.q.at(job.item.first + row / call.group, u.head * call.group + row % call.group, 0);
    for (int d = 0; d < D; ++d) q[r * qp + simd::lane_position<E>(d, lanes)] = to_float(from[d * call.q.strides[2]]) * call.scale;
  }

  const std::int64_t first = position_of(job, u.first_row, call.group);
  key_blocks blocks(call.options, first, position_of(job, u.last_row - 1, call.group), u.keys,
                    block_of((D + Dv) * static_cast<std::int64_t>(sizeof(E))));
  const E* addresses[4][simd::block_tokens];
  const E **k = addresses[0], **v = addresses[1], **next_k = addresses[2], **next_v = addresses[3];
  const auto locate = [&](const key_block& b, const E** keys, const E** values) {
    row_addresses(call.rows.key, job.item, call.page_shift, u.head, b.begin, b.n, keys);
    row_addresses(call.rows.value, job.item, call.page_shift, u.head, b.begin, b.n, values);
  };
  key_block block = blocks.next();
  locate(block, k, v);
  while (block.n > 0) {
    const key_block next = blocks.next();
    locate(next, next_k, next_v);
    int prefetched = next.n;
    for (int r = 0; r < rows;) {
      // Rows with the same visible keys go together: all of them, except where the block holds the edge of a mask.
      const auto seen = [&](int row) {
        const key_range all = visible(call.options, position_of(job, u.first_row + row, call.group), block.zone);
        return key_range{std::clamp<std::int64_t>(all.begin - block.begin, 0, block.n),
                         std::clamp<std::int64_t>(all.end - block.begin, 0, block.n)};
      };
      const key_range range = seen(r);
      int end = r + 1;
      for (; end < rows; ++end) {
        const key_range other = seen(end);
        if (other.begin != range.begin || other.end != range.end) break;
      }
      const auto n = static_cast<int>(range.end - range.begin);
      if (n > 0) {
        float* const s = scores + r * simd::block_tokens;
        kernel.dots(q + r * qp, qp, end - r, k + range.begin, n, next_k, prefetched, D, s);
        call.kernels->row_softmax(s, end - r, n, call.options.soft_cap, max + r, sum + r, factor + r);
        kernel.weighted_sum(s, factor + r, end - r, v + range.begin, n, next_v, prefetched, Dv, sums + r * vp, vp);
        prefetched = 0;
      }
      r = end;
    }
    block = next;
    std::swap(k, next_k);
    std::swap(v, next_v);
  }

  float natural[simd::long_key_pitch];                                                              // (Dv)
  for (int r = 0; r < rows; ++r) {
    for (int d = 0; d < Dv; ++d) natural[d] = sums[r * vp + simd::lane_position<E>(d, lanes)];
    take_row(call, job, u, u.first_row + r, natural, {max[r], sum[r]});
  }
}

}  // namespace kvx::host_dense
