#pragma once
// Attention of decode steps over {sink, members of the pages found, recent} on the host, for a batch.

#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/attend/host/paged_head.hpp>
#include <kvx/attend/pages.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvx {

/// Bytes of scratch that attend_pages needs for a batch of `queries` new tokens in sequences of at most `tokens` tokens.
template <class Reranker>
std::int64_t attend_pages_scratch(const host& exec, bool coded, const Reranker& reranker, page_shape page, int heads, int query_heads,
                                  std::int64_t queries, std::int64_t tokens) {
  scratch_parts s;
  host_pages::attend_parts<Reranker>(s, coded, reranker, page, query_heads / heads, tokens);
  return 64 + host_dense::workers_of(exec, queries * heads) * s.used;
}

/// Attention of the new tokens of a batch over the sinks, the recent tokens and the members of the pages found for each KV head.
///
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view; scratch of attend_pages_scratch bytes, any alignment
/// zones       within a step every token uses the edge of the committed length before it
/// cost        the search of each KV head once for its group; rows of what is attended
/// exactness   the same bits for any number of threads; keep >= the zone and a beam of all tokens is dense attention up to rounding, but
///             for keys that are never found
/// source      IceCache (arXiv 2604.10539) sections 3 and 4
template <bool Coded, element E, element T, dci_shape Shape, class Reranker>
void attend_pages(const host& exec, const page_layer<E, Shape>& layer, const Reranker& reranker, page_shape page, tensor_view<const T, 3> q,
                  tensor_view<T, 3> out, tensor_view<float, 2> lse, const page_options& options, std::span<std::byte> scratch) {
  std::int64_t tokens = 0, most = 0;
  for (const batch_item& item : layer.rows_of) {
    tokens += item.queries;
    most = std::max(most, item.length);
  }
  const std::int64_t H = layer.rows.heads, units = tokens * H, G = q.extents[1] / H;
  scratch_parts size;
  host_pages::attend_parts<Reranker>(size, Coded, reranker, page, G, most);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const first = static_cast<std::byte*>(std::align(64, 1, start, space));
  using head_type = paged_head<E, Shape, Reranker>;
  const std::int64_t each = layer.far != nullptr ? std::max<std::int64_t>(tokens, 1) : 1;  // slots of a KV head are for one thread
  const auto run = [&](bool searching) {  // those that search go before those that take what was found
    std::atomic<std::int64_t> claimed{0};
    for_each_task(exec, host_dense::workers_of(exec, units), [&](std::int64_t worker) {
      scratch_parts memory{first + worker * size.used};
      const host_pages::attend_parts<Reranker> part(memory, Coded, reranker, page, G, most);
      for (std::int64_t i = claimed.fetch_add(1); i < units / each; i = claimed.fetch_add(1)) {
        for (std::int64_t token = i / H; token < i / H + each; ++token) {
          std::size_t item = 0;
          std::int64_t query = token;
          while (query >= layer.rows_of[item].queries) query -= layer.rows_of[item++].queries;
          const std::int64_t position = layer.rows_of[item].length - layer.rows_of[item].queries + query;
          if (head_type::searches(layer.index->reuse, position) != searching) continue;
          head_type head(layer, reranker, item, query, i % H, G, options, part);
          head.search(q);
          head.attend(out, lse);
        }
      }
    });
  };
  run(true);
  if (layer.index->reuse.steps > 1) run(false);
}

}  // namespace kvx
