#pragma once
// Attention of a group of queries over chosen rows, on the host.

#include <kvx/attend/host/dense_few.hpp>
#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/attend/rows.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace kvx {

namespace host_rows {

/// Rows of one task: at least 512, and at most 128 tasks. A pure function of the rows: threads do not change a result.
constexpr std::int64_t piece_of(std::int64_t rows) {
  return std::max<std::int64_t>(512, round_up(ceil_div(rows, 128), simd::block_tokens));
}

/// Floats of a piece: sums, scores, and max, sum, factor of each head.
constexpr std::int64_t piece_floats(std::int64_t heads, std::int64_t value_dim) {
  return heads * (host_dense::float_pitch(value_dim) + simd::block_tokens) + 3 * round_up(heads, simd::padding);
}

/// One call of attend_rows.
template <class E>
struct rows_call {
  row_view<const E> rows;
  const std::int32_t* pages = nullptr;
  std::int64_t head = 0;
  row_set set;
  row_options options;
  const simd::kernel_table* kernels = nullptr;
  int heads = 0;
  const float* q = nullptr;  // (G, float_pitch(D)): scale q, in lane order
  far_head<E>* far = nullptr;

  /// Token at a place of the set: ranges first, then ids.
  std::int64_t token(std::int64_t place) const {
    for (const token_range& r : set.ranges) {
      if (place < r.size()) return r.begin + place;
      place -= r.size();
    }
    return set.ids[static_cast<std::size_t>(place)];
  }
};

/// Addresses of the K and V rows of up to a block of tokens.
template <class E>
struct row_block {
  int n = 0;
  const E* key[simd::block_tokens];
  const E* value[simd::block_tokens];

  void locate(const rows_call<E>& call, std::int64_t first, std::int64_t last, int most) {
    const int shift = page_shift_of(call.rows.page_tokens);
    const std::int64_t mask = call.rows.page_tokens - 1;
    n = static_cast<int>(std::clamp<std::int64_t>(last - first, 0, most));
    for (int t = 0; t < n; ++t) {
      const std::int64_t token = call.token(first + t);
      if (call.far != nullptr) {
        const row_address<E> at = call.far->row(token);
        key[t] = at.key;
        value[t] = at.value;
        continue;
      }
      const std::int64_t page = call.pages[token >> shift];
      key[t] = call.rows.key.at(page, call.head, token & mask);
      value[t] = call.rows.value.at(page, call.head, token & mask);
    }
  }
};

/// Places [first, last) of the set. Leaves sums (G, pitch) in lane order, max (G) and sum (G) in `at`.
template <class E>
void attend_piece(const rows_call<E>& call, std::int64_t first, std::int64_t last, float* at) {
  const simd::row_kernels<E>& kernel = call.kernels->template rows<E>();
  const int G = call.heads, D = call.rows.key_dim, Dv = call.rows.value_dim;
  const std::int64_t qp = host_dense::float_pitch(D), vp = host_dense::float_pitch(Dv);
  float* const sums = at;                                                                           // (G, vp)
  float* const max = sums + G * vp;                                                                 // (G)
  float* const sum = max + round_up(G, simd::padding);                                              // (G)
  float* const factor = sum + round_up(G, simd::padding);                                           // (G)
  float* const scores = factor + round_up(G, simd::padding);                                        // (G, block_tokens)
  std::fill_n(sums, G * vp, 0.0f);
  std::fill_n(max, G, -infinity);
  std::fill_n(sum, G, 0.0f);
  const int most = host_dense::block_of((D + Dv) * static_cast<std::int64_t>(sizeof(E)));
  row_block<E> blocks[2];
  row_block<E>*now = &blocks[0], *next = &blocks[1];
  now->locate(call, first, last, most);
  while (now->n > 0) {
    first += now->n;
    next->locate(call, first, last, most);
    kernel.dots(call.q, qp, G, now->key, now->n, next->key, next->n, D, scores);
    call.kernels->row_softmax(scores, G, now->n, call.options.soft_cap, max, sum, factor);
    kernel.weighted_sum(scores, factor, G, now->value, now->n, next->value, next->n, Dv, sums, vp);
    std::swap(now, next);
  }
}

/// attend_rows by the kernels of a given instruction set.
template <class E, class T>
void attend(const simd::kernel_table& kernels, const host& exec, const row_view<const E>& rows, const std::int32_t* pages,
            std::int64_t head, tensor_view<const T, 2> q, const row_set& set, const row_options& options, std::span<softmax_state> states,
            tensor_view<float, 2> sums, std::span<std::byte> scratch, far_head<E>* far = nullptr) {
  rows_call<E> call{rows, pages, head, set, options, &kernels, static_cast<int>(q.extents[0]), nullptr, far};
  const std::int64_t n = set.size();
  if (n == 0) return;
  const std::int64_t G = q.extents[0], D = rows.key_dim, Dv = rows.value_dim;
  const std::int64_t qp = host_dense::float_pitch(D), vp = host_dense::float_pitch(Dv), piece = piece_of(n);
  const float scale = logit_scale(options.scale, D);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const ready = static_cast<float*>(std::align(64, 1, start, space));                         // (G, qp)
  std::fill_n(ready, G * qp, 0.0f);
  for (std::int64_t g = 0; g < G; ++g) {
    for (std::int64_t d = 0; d < D; ++d)
      ready[g * qp + simd::lane_position<E>(static_cast<int>(d), kernels.lanes)] = to_float(*q.at(g, d)) * scale;
  }
  call.q = ready;
  float* const pieces = ready + G * qp;                                                             // (pieces, piece_floats)
  const std::int64_t stride = piece_floats(G, Dv), count = ceil_div(n, piece);
  const host threads = far != nullptr ? host{.threads = 1} : exec;  // slots of a KV head are for one thread
  for_each_task(threads, count, [&](std::int64_t i) { attend_piece(call, i * piece, std::min(n, (i + 1) * piece), pieces + i * stride); });

  for (std::int64_t i = 0; i < count; ++i) {
    const float* const part = pieces + i * stride;                                                  // (G, vp), then max (G), sum (G)
    const float* const max = part + G * vp;
    const float* const sum = max + round_up(G, simd::padding);
    for (std::int64_t g = 0; g < G; ++g) {
      const merge_weights w = merge(states[static_cast<std::size_t>(g)], {max[g], sum[g]});
      for (std::int64_t d = 0; d < Dv; ++d) {
        float* const to = sums.at(g, d);
        *to = w(*to, part[g * vp + simd::lane_position<E>(static_cast<int>(d), kernels.lanes)]);
      }
    }
  }
}

}  // namespace host_rows

/// Bytes of scratch that attend_rows needs for a group of G heads over n rows. A pure function of its arguments.
template <class E>
constexpr std::int64_t attend_rows_scratch(const host&, const row_view<E>& rows, std::int64_t heads, std::int64_t n) {
  const std::int64_t pieces = n > 0 ? ceil_div(n, host_rows::piece_of(n)) : 0;
  return 64 + (heads * host_dense::float_pitch(rows.key_dim) + pieces * host_rows::piece_floats(heads, rows.value_dim)) *
                  static_cast<std::int64_t>(sizeof(float));
}

/// Takes rows into a partial attention.
///
/// what        states and sums become those of the rows that they stood for and of the set's; begin with softmax_state{} and any sums.
///             So residents come first, their lse ranks the others, and the selection is taken into the same softmax
/// shapes      q (G, D); states (G); sums (G, Dv), undivided (see softmax_state); pages of the sequence; scratch of
///             attend_rows_scratch bytes for G and set.size(), any alignment
/// far         null where all rows are near
/// units       scores in nats
/// cost        reads K and V of the set once; rows of the next block are asked for while one is computed
/// exactness   float sums in an order that depends on the set alone; the same bits for any number of threads; instruction sets differ
///             by rounding. Rows outside of the set are never read
/// errors      usage_error for shapes that do not fit; tokens are not checked; NaN scores give NaN
/// source      Milakov and Gimelshein 2018
template <element E, element T>
void attend_rows(const host& exec, const row_view<const E>& rows, const std::int32_t* pages, std::int64_t head, tensor_view<const T, 2> q,
                 const row_set& set, const row_options& options, std::span<softmax_state> states, tensor_view<float, 2> sums,
                 std::span<std::byte> scratch, std::type_identity_t<far_head<E>*> far = nullptr, call_site where = call_site::here()) {
  const std::int64_t G = q.extents[0];
  require_range("attend_rows: head", head, 0, rows.heads - 1, where);
  require_range("attend_rows: key_dim", rows.key_dim, 1, 576, where);
  require_range("attend_rows: value_dim", rows.value_dim, 1, 576, where);
  require_shape("attend_rows: q", q, {G, rows.key_dim}, where);
  require_shape("attend_rows: sums", sums, {G, rows.value_dim}, where);
  require(static_cast<std::int64_t>(states.size()) == G, "attend_rows: states must have one entry a head", where);
  require(static_cast<std::int64_t>(scratch.size()) >= attend_rows_scratch(exec, rows, G, set.size()),
          "attend_rows: scratch is smaller than attend_rows_scratch", where);
  host_rows::attend(simd::kernels(), exec, rows, pages, head, q, set, options, states, sums, scratch, far);
}

/// Divides a partial attention: the output of a whole one.
///
/// shapes      states (G), sums (G, Dv), out (G, Dv)
/// errors      usage_error for shapes that do not fit; a head that saw no row: out 0
template <element T>
void finish_rows(const host&, std::span<const softmax_state> states, tensor_view<const float, 2> sums, tensor_view<T, 2> out,
                 call_site where = call_site::here()) {
  const std::int64_t G = out.extents[0], Dv = out.extents[1];
  require(static_cast<std::int64_t>(states.size()) == G, "finish_rows: states must have one entry a head", where);
  require_shape("finish_rows: sums", sums, {G, Dv}, where);
  for (std::int64_t g = 0; g < G; ++g) {
    const float sum = states[static_cast<std::size_t>(g)].sum;
    for (std::int64_t d = 0; d < Dv; ++d) *out.at(g, d) = round_to<T>(sum != 0 ? *sums.at(g, d) / sum : 0.0f);
  }
}

}  // namespace kvx
