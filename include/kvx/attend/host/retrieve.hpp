#pragma once
// Attention of decode steps over {sink, selected, recent} on the host, for a batch.

#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/attend/host/retrieve_head.hpp>
#include <kvx/attend/retrieve.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace kvx {

namespace host_retrieve {

/// What heads share that have one budget.
struct pool {
  static constexpr std::int64_t head_bytes = 1024;  // of a retrieving_head, at most

  float* scores;            // (H tokens), head after head
  std::int32_t* positions;  // (H tokens)
  std::int64_t* keep;       // (H)
  std::byte* heads;         // (H) retrieving_head

  pool(scratch_parts& s, std::int64_t count, std::int64_t tokens)
      : scores(s.take<float>(count * tokens)),
        positions(s.take<std::int32_t>(count * tokens)),
        keep(s.take<std::int64_t>(count)),
        heads(s.take<std::byte>(count * head_bytes)) {}
};

/// Divides a budget among heads: each keeps its part of the best of all scores, ties to the lowest head.   each(h): scores of head h
template <class Scores>
void divide(std::int64_t heads, std::int64_t budget, const Scores& each, const pool& p) {
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::span<const float> scores = each(h);
    std::copy(scores.begin(), scores.end(), p.scores + count);
    count += static_cast<std::int64_t>(scores.size());
  }
  const std::span<const float> all(p.scores, static_cast<std::size_t>(count));
  const std::int64_t taken = top_k<std::int32_t>(host{.threads = 1}, all, budget, {p.positions, static_cast<std::size_t>(count)}).taken;
  std::int64_t end = 0, i = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    end += static_cast<std::int64_t>(each(h).size());
    p.keep[h] = 0;
    for (; i < taken && p.positions[i] < end; ++i) ++p.keep[h];
  }
}

}  // namespace host_retrieve

/// Bytes of scratch that attend_retrieved needs for a batch of `queries` new tokens in sequences of at most `tokens` tokens.
template <class Reranker>
std::int64_t attend_retrieved_scratch(const host& exec, const key_sketch& sketch, const bucket_scoring& by, const Reranker& reranker,
                                      page_shape page, int heads, int query_heads, std::int64_t queries, std::int64_t tokens) {
  scratch_parts s;
  host_retrieve::parts<Reranker>(s, sketch, by, reranker, page, query_heads / heads, tokens);
  scratch_parts pooled;
  host_retrieve::pool(pooled, heads, tokens);
  // A budget of the whole layer holds every head's candidates at once. The memory is touched where it is used.
  return 64 + std::max<std::int64_t>(host_dense::workers_of(exec, queries * heads), heads) * s.used + pooled.used;
}

/// Attention of the new tokens of a batch over the sinks, the recent tokens and what is selected for each KV head.
///
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view; scratch of attend_retrieved_scratch bytes, any alignment
/// zones       within a step every token uses the edge of the committed length before it
/// cost        one scan of the signs of the zone, codes of the candidates, rows of what is attended
/// exactness   the same bits for any number of threads; keep >= the zone is dense attention up to rounding
/// source      ParisKV (arXiv 2602.07721) sections 2 to 5
template <element E, element T, class Reranker>
void attend_retrieved(const host& exec, const retrieve_layer<E>& layer, const bucket_scoring& by, const Reranker& reranker, page_shape page,
                      tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse, const retrieve_options& options,
                      std::span<std::byte> scratch) {
  std::int64_t tokens = 0, most = 0;
  for (const batch_item& item : layer.rows_of) {
    tokens += item.queries;
    most = std::max(most, item.length);
  }
  const std::int64_t H = layer.rows.heads, units = tokens * H;
  scratch_parts size;
  const std::int64_t G = q.extents[1] / H;
  host_retrieve::parts<Reranker>(size, layer.sketch, by, reranker, page, G, most);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const first = static_cast<std::byte*>(std::align(64, 1, start, space));
  const auto part_of = [&](std::int64_t i) {
    scratch_parts memory{first + i * size.used};
    return host_retrieve::parts<Reranker>(memory, layer.sketch, by, reranker, page, G, most);
  };
  const auto locate = [&](std::int64_t token) {  // entry of the batch, new token of it
    std::size_t item = 0;
    while (token >= layer.rows_of[item].queries) token -= layer.rows_of[item++].queries;
    return std::pair(item, token);
  };
  using head_type = retrieving_head<E, Reranker>;
  const std::int64_t workers = host_dense::workers_of(exec, units);
  if (options.budget.of == retrieve_budget::kind::layer) {
    scratch_parts memory{first + std::max(workers, H) * size.used};
    const host_retrieve::pool pool(memory, H, most);
    static_assert(sizeof(head_type) <= host_retrieve::pool::head_bytes && std::is_trivially_destructible_v<head_type>);
    const auto at = [&](std::int64_t h) { return reinterpret_cast<head_type*>(pool.heads + h * host_retrieve::pool::head_bytes); };
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto [item, query] = locate(token);
      for_each_task(exec, H, [&, item = item, query = query](std::int64_t h) {
        std::construct_at(at(h), layer, by, reranker, page, item, query, h, G, options, part_of(h))->search(q);
      });
      host_retrieve::divide(
          H, std::min(options.keep, most) * H, [&](std::int64_t h) { return at(h)->scores(); }, pool);
      for_each_task(exec, H, [&](std::int64_t h) { at(h)->attend(pool.keep[h], out, lse); });
    }
    return;
  }
  const std::int64_t each =
      layer.far != nullptr ? std::max<std::int64_t>(tokens, 1) : 1;  // slots of a KV head are for one thread, and are asked for in order
  std::atomic<std::int64_t> claimed{0};
  for_each_task(exec, workers, [&](std::int64_t worker) {
    const host_retrieve::parts<Reranker> part = part_of(worker);
    for (std::int64_t i = claimed.fetch_add(1); i < units / each; i = claimed.fetch_add(1)) {
      for (std::int64_t token = i / H; token < i / H + each; ++token) {
        const auto [item, query] = locate(token);
        head_type head(layer, by, reranker, page, item, query, i % H, G, options, part);
        head.search(q);
        const bool by_mass = options.budget.of == retrieve_budget::kind::mass && !head.scores().empty();
        head.attend(by_mass ? head.rows_of_mass(options.budget.mass) : options.keep, out, lse);
      }
    }
  });
}

}  // namespace kvx
