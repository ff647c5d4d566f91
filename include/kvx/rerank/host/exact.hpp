#pragma once
// True logits of candidates on the host.

#include <kvx/backend/host.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/layout/host/row_logits.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/exact.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvx {

/// Candidates of one task: a multiple of the kernels' blocks.
inline constexpr std::int64_t exact_task_tokens = 512;

/// Bytes of scratch that `rerank` needs for a group of G heads of D dims.
constexpr std::int64_t rerank_scratch(const host&, const exact&, int key_dim, std::int64_t heads) {
  return 64 + heads * row_query_pitch(key_dim) * static_cast<std::int64_t>(sizeof(float));
}

/// Logits of candidates for every head of a group, from their rows. One that is not finite becomes NaN: such a key is never found.
///
/// shapes      ids (C), ascending; logits (G, C), rows dense; queries.plain (G, D)
/// units       nats, scaled; a soft cap would not change their order and is left to attention
/// cost        reads the K rows of the candidates
/// exactness   float sums; instruction sets differ by rounding
/// errors      usage_error for shapes that do not fit; ids are not checked
template <element E>
void rerank(const host& exec, const exact& policy, const key_sketch&, const head_view<E>& from, const group_queries& queries,
            std::span<const std::int32_t> ids, tensor_view<float, 2> logits, std::span<std::byte> scratch,
            call_site where = call_site::here()) {
  const std::int64_t G = queries.plain.extents[0], D = from.rows.key_dim, C = static_cast<std::int64_t>(ids.size());
  require_range("rerank: key_dim", D, 1, 576, where);
  require_range("rerank: heads of the group", G, 1, most_rerank_heads, where);
  require_shape("rerank: plain queries", queries.plain, {G, D}, where);
  require_shape("rerank: logits", logits, {G, C}, where);
  require(logits.strides[1] == 1 || C <= 1, "rerank: rows of logits must be dense", where);
  require(static_cast<std::int64_t>(scratch.size()) >= rerank_scratch(exec, policy, static_cast<int>(D), G),
          "rerank: scratch is smaller than rerank_scratch", where);

  void* start = scratch.data();
  std::size_t space = scratch.size();
  const row_queries q = prepare_row_queries<E>(queries.plain, queries.scale, static_cast<float*>(std::align(64, 1, start, space)));
  const int page_shift = page_shift_of(from.rows.page_tokens);
  const auto find = [&](std::int64_t i) {
    const std::int64_t id = ids[static_cast<std::size_t>(i)];
    if (from.far != nullptr) return from.far->row(id).key;
    return from.rows.key.at(from.pages[id >> page_shift], from.head, id & (from.rows.page_tokens - 1));
  };
  if (from.far != nullptr) from.far->bring(ids);
  const host threads = from.far != nullptr ? host{.threads = 1} : exec;  // slots of a KV head are for one thread
  for_each_task(threads, ceil_div(C, exact_task_tokens), [&](std::int64_t task) {
    row_logits<E>(q, task * exact_task_tokens, std::min(C, (task + 1) * exact_task_tokens), find, logits);
  });
}

}  // namespace kvx
