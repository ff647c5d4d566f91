#pragma once
// Dense attention of a ragged batch on the host.

#include <kvx/attend/dense.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Bytes of scratch that attend_dense needs for this batch, whatever its options.
template <class E>
std::int64_t attend_dense_scratch(const host&, const row_view<E>& rows, std::span<const attend_item> batch, int query_heads) {
  return static_cast<std::int64_t>(batch.size()) * query_heads * rows.value_dim * static_cast<std::int64_t>(sizeof(float)) + 64;
}

/// Softmax attention of the last tokens of each sequence over all of its rows.
///
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or empty; Q a multiple of H; query head i reads KV head i / (Q / H)
/// units       lse in nats
/// errors      usage_error for shapes that do not fit; length 0 or no visible key: out 0, lse -inf; NaN scores give NaN
template <element E, element T>
void attend_dense(const host& exec, const row_view<const E>& rows, std::span<const attend_item> batch, tensor_view<const T, 3> q,
                  tensor_view<T, 3> out, tensor_view<float, 2> lse, const dense_options& o, std::span<std::byte> scratch,
                  call_site where = call_site::here()) {
  const auto Q = q.extents[1];
  require(rows.heads > 0 && Q % rows.heads == 0, "attend_dense: query heads must be a multiple of the KV heads", where);
  require(static_cast<std::int64_t>(scratch.size()) >= attend_dense_scratch(exec, rows, batch, static_cast<int>(Q)),
          "attend_dense: scratch is smaller than attend_dense_scratch", where);
  const auto group = Q / rows.heads;
  const float scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<float>(rows.key_dim));
  float* const sums = reinterpret_cast<float*>(scratch.data());
  for_each_task(exec, static_cast<std::int64_t>(batch.size()) * Q, [&](std::int64_t task) {
    const attend_item& item = batch[static_cast<std::size_t>(task / Q)];
    const std::int64_t head = task % Q;
    float* const acc = sums + task * rows.value_dim;  // (Dv)
    for (std::int64_t i = 0; i < item.queries; ++i) {
      const std::int64_t position = item.length - item.queries + i;
      softmax_state state;
      for (int d = 0; d < rows.value_dim; ++d) acc[d] = 0;
      for (std::int64_t t = 0; t <= position; ++t) {
        if (t >= o.sink && t < window_start(o, position)) continue;
        const std::int64_t page = item.pages[t / rows.page_tokens];
        const E* k = rows.key.at(page, head / group, t % rows.page_tokens);
        const E* v = rows.value.at(page, head / group, t % rows.page_tokens);
        float score = 0;
        for (int d = 0; d < rows.key_dim; ++d) score += to_float(*q.at(item.first + i, head, d)) * to_float(k[d]);
        score *= scale;
        if (o.soft_cap > 0) score = o.soft_cap * std::tanh(score / o.soft_cap);
        if (score == -infinity) continue;
        const merge_weights w = merge(state, {score, 1});
        for (int d = 0; d < rows.value_dim; ++d) acc[d] = w(acc[d], to_float(v[d]));
      }
      for (int d = 0; d < rows.value_dim; ++d) *out.at(item.first + i, head, d) = round_to<T>(state.sum != 0 ? acc[d] / state.sum : 0.0f);
      if (lse.data != nullptr) *lse.at(item.first + i, head) = state.lse();
    }
  });
}

}  // namespace kvx
