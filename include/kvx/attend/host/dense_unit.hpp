#pragma once
// What every unit of dense attention works with: the call, the keys in blocks, and where its rows go.

#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvx::host_dense {

/// One call of attend_dense.
template <class E, class T>
struct dense_call {
  row_view<const E> rows;
  tensor_view<const T, 3> q;   // (N, Q, D)
  tensor_view<T, 3> out;       // (N, Q, Dv)
  tensor_view<float, 2> lse;   // (N, Q)
  dense_options options;
  const simd::kernel_table* kernels = nullptr;
  std::int64_t group = 1;
  int page_shift = 0;
  float scale = 1;
};

/// One unit: rows [first_row, last_row) of a job for one KV head, against the keys of one piece.
struct dense_unit {
  std::int64_t head = 0;
  std::int64_t tile = 0;
  std::int64_t slot = 0;  // which of the job's results: piece, less the skipped ones
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  key_range keys;
};

inline dense_unit unit_of(const dense_job& job, std::int64_t index, std::int64_t heads) {
  dense_unit u;
  u.head = index % heads;
  u.slot = index / heads % job.pieces;
  u.tile = job.cut.tiles - 1 - index / heads / job.pieces;  // long rows first: the last units to finish are short ones
  u.first_row = u.tile * job.cut.tile;
  u.last_row = std::min(u.first_row + job.cut.tile, job.cut.rows);
  const std::int64_t piece = u.slot < job.skip ? u.slot : u.slot + job.skipped;
  u.keys = {piece * job.cut.piece, (piece + 1) * job.cut.piece};
  return u;
}

/// Position of the query of a row.
inline std::int64_t position_of(const dense_job& job, std::int64_t row, std::int64_t group) {
  return job.item.length - job.item.queries + row / group;
}

/// Up to 64 keys of one zone.
struct key_block {
  int zone = 0;
  std::int64_t begin = 0;
  int n = 0;
};

/// The keys that the rows at positions first..last see within `piece`, block by block.
class key_blocks {
 public:
  key_blocks(const dense_options& o, std::int64_t first, std::int64_t last, key_range piece, int step) : step_(step) {
    for (int zone = 0; zone < 2; ++zone) {
      ranges_[zone] = {std::max(visible(o, first, zone).begin, piece.begin), std::min(visible(o, last, zone).end, piece.end)};
    }
  }

  /// The next block; n is 0 after the last.
  key_block next() {
    while (zone_ < 2 && ranges_[zone_].begin >= ranges_[zone_].end) ++zone_;
    if (zone_ == 2) return {};
    key_range& r = ranges_[zone_];
    const key_block b{zone_, r.begin, static_cast<int>(std::min<std::int64_t>(step_, r.end - r.begin))};
    r.begin += b.n;
    return b;
  }

 private:
  key_range ranges_[2];
  int zone_ = 0;
  int step_;
};

/// Addresses of the rows of tokens [begin, begin + n) of one head.
template <class E>
void row_addresses(const row_array<const E>& array, const attend_item& item, int page_shift, std::int64_t head, std::int64_t begin, int n,
                   const E** out) {
  const std::int64_t page_tokens = std::int64_t{1} << page_shift;
  for (int i = 0; i < n;) {
    const std::int64_t slot = (begin + i) & (page_tokens - 1);
    const E* row = array.at(item.pages[(begin + i) >> page_shift], head, slot);
    const int end = static_cast<int>(std::min<std::int64_t>(n, i + page_tokens - slot));
    for (; i < end; ++i, row += array.slot_stride) out[i] = row;
  }
}

/// Writes one output row and its lse. sums (Dv) undivided, in natural order.
template <class E, class T>
void write_row(const dense_call<E, T>& call, const dense_job& job, std::int64_t head, std::int64_t row, const float* sums,
               softmax_state state) {
  const std::int64_t n = job.item.first + row / call.group;
  const std::int64_t query_head = head * call.group + row % call.group;
  const int dim = call.rows.value_dim;
  float divided[simd::long_key_pitch];                                                              // (Dv)
  for (int d = 0; d < dim; ++d) divided[d] = state.sum != 0 ? sums[d] / state.sum : 0.0f;
  T* const out = call.out.at(n, query_head, 0);
  const std::int64_t stride = call.out.strides[2];
  if (stride == 1) {
    call.kernels->template conversions<T>().from_floats(divided, dim, out);
  } else {
    for (int d = 0; d < dim; ++d) out[d * stride] = round_to<T>(divided[d]);
  }
  if (call.lse.data != nullptr) *call.lse.at(n, query_head) = state.lse();
}

/// Takes one row of a unit: it is the result if the job has one piece, and kept for `merge_tile` otherwise.
template <class E, class T>
void take_row(const dense_call<E, T>& call, const dense_job& job, const dense_unit& u, std::int64_t row, const float* sums,
              softmax_state state) {
  if (job.pieces == 1) return write_row(call, job, u.head, row, sums, state);
  const std::int64_t place = (u.head * job.cut.rows + row) * job.pieces + u.slot;
  job.states[place] = state;
  std::copy_n(sums, call.rows.value_dim, job.sums + place * float_pitch(call.rows.value_dim));
}

/// Merges the pieces of every row of a tile, in their order; pieces without a key are left out, whatever their sums hold.
template <class E, class T>
void merge_tile(const dense_call<E, T>& call, const dense_job& job, const dense_unit& u) {
  const int dim = call.rows.value_dim;
  const std::int64_t pitch = float_pitch(dim);
  for (std::int64_t row = u.first_row; row < u.last_row; ++row) {
    const std::int64_t place = (u.head * job.cut.rows + row) * job.pieces;
    const softmax_state* const states = job.states + place;                                         // (pieces)
    softmax_state all;
    for (std::int64_t i = 0; i < job.pieces; ++i) {
      if (states[i].sum != 0) all.max = std::max(all.max, states[i].max);
    }
    const float against = all.max == -infinity ? 0 : all.max;  // -inf with a sum: NaN scores, which must show
    float merged[simd::long_key_pitch] = {};                                                        // (Dv)
    float weights[simd::block_tokens];
    const float* sums[simd::block_tokens];
    int n = 0;
    const auto flush = [&] {
      call.kernels->merge(weights, sums, n, dim, merged);
      n = 0;
    };
    for (std::int64_t i = 0; i < job.pieces; ++i) {
      if (states[i].sum == 0) continue;
      weights[n] = exp(states[i].max - against);
      all.sum += weights[n] * states[i].sum;
      sums[n++] = job.sums + (place + i) * pitch;
      if (n == simd::block_tokens) flush();
    }
    if (n > 0) flush();
    write_row(call, job, u.head, row, merged, all);
  }
}

}  // namespace kvx::host_dense
