#pragma once
// Attention of decode steps over {sink, selected, recent} on the host: search, rerank, selection and attention of one head in one go.

#include <kvx/attend/dense.hpp>
#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/attend/host/rows.hpp>
#include <kvx/attend/host/tiers.hpp>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend/rows.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/sketch/value_code.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvx {

/// One layer as retrieval reads it.
///
/// sketch      how the keys are coded
/// columns_of  the batch under the page ids of the columns; with rows of the caller's those differ from the rows' own
/// balances    (entries) diagonals, those of this layer (H, D) begin at `balance_at`; null for none; empty: none at all
/// values      columns of the values, where the reranker has tiers
template <class E>
struct retrieve_layer {
  row_view<const E> rows;
  key_columns columns;
  key_sketch sketch;
  kvx::zones zones;
  std::span<const batch_item> rows_of;
  std::span<const batch_item> columns_of;
  std::span<const float* const> balances;
  std::int64_t balance_at = 0;
  value_columns values = {};
};

namespace host_retrieve {

/// How tokens take part whose rows are not read.
template <class Reranker>
constexpr tiers others_of() {
  if constexpr (requires { Reranker::others; }) return Reranker::others;
  return {};
}

/// Scratch of one worker, for sequences of at most `tokens` tokens.
template <class Reranker>
struct parts {
  float* plain;           // (G, D)
  float* rotated;         // (G, D)
  softmax_state* states;  // (G)
  float* lse;             // (G)
  float* sums;            // (G, Dv)
  std::int32_t* ids;      // (C)
  std::int32_t* chosen;   // (C)
  float* logits;          // (G, C)
  float* scores;          // (C)
  float* page_dots;       // (pages, G)
  std::byte* stage;       // of one stage after the other
  std::int64_t stage_bytes;

  parts(scratch_parts& s, const key_sketch& sketch, const bucket_scoring& by, const Reranker& reranker, page_shape page, std::int64_t G,
        std::int64_t tokens) {
    plain = s.take<float>(G * page.key_dim);
    rotated = s.take<float>(G * page.key_dim);
    states = s.take<softmax_state>(G);
    lse = s.take<float>(G);
    sums = s.take<float>(G * page.value_dim);
    ids = s.take<std::int32_t>(tokens);
    chosen = s.take<std::int32_t>(tokens);
    logits = s.take<float>(G * tokens);
    scores = s.take<float>(tokens);
    page_dots = s.take<float>((ceil_div(tokens, std::int64_t{page.tokens}) + 1) * G);
    const host serial{.threads = 1};
    const row_view<const float> shape{{}, {}, 1, page.tokens, page.key_dim, page.value_dim};
    stage_bytes = std::max({search_bytes(sketch, by, page, static_cast<int>(G), tokens), attend_rows_scratch(serial, shape, G, tokens),
                            group_scores_scratch(serial, reranker.rule, G, tokens)});
    if constexpr (!std::is_same_v<Reranker, pass_through>) {
      stage_bytes = std::max(stage_bytes, rerank_scratch(serial, reranker, page.key_dim, G));
    }
    if constexpr (any(others_of<Reranker>())) {
      stage_bytes = std::max(stage_bytes, attend_tiers_scratch(page, others_of<Reranker>().value_bits, G, tokens));
    }
    stage = s.take<std::byte>(stage_bytes);
  }
};

}  // namespace host_retrieve

/// Bytes of scratch that attend_retrieved needs for a batch of `queries` new tokens in sequences of at most `tokens` tokens.
template <class Reranker>
std::int64_t attend_retrieved_scratch(const host& exec, const key_sketch& sketch, const bucket_scoring& by, const Reranker& reranker,
                                      page_shape page, int heads, int query_heads, std::int64_t queries, std::int64_t tokens) {
  scratch_parts s;
  host_retrieve::parts<Reranker>(s, sketch, by, reranker, page, query_heads / heads, tokens);
  return 64 + host_dense::workers_of(exec, queries * heads) * s.used;
}

/// One new token and KV head.
///
/// what        resident rows first, whose log-sum-exp ranks the others; candidates from the index; their logits from the reranker;
///             the best `keep` by the group rule; their rows into the same softmax
template <class E, class T, class Reranker>
void retrieve_head(const retrieve_layer<E>& layer, const bucket_scoring& by, const Reranker& reranker, page_shape page, std::size_t item,
                   std::int64_t query, std::int64_t head, tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse,
                   const retrieve_options& options, const host_retrieve::parts<Reranker>& part) {
  const host serial{.threads = 1};
  const batch_item& of = layer.rows_of[item];
  const std::int64_t G = q.extents[1] / layer.rows.heads, D = page.key_dim, Dv = page.value_dim;
  const std::int64_t row = of.first + query, n = of.length - of.queries + query + 1;
  const std::int64_t end = std::min(edge(layer.zones, of.length - of.queries, page.tokens), n);
  const std::int64_t begin = std::min<std::int64_t>(layer.zones.sink, end);
  const float scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(D));

  const float* balance = layer.balances.empty() ? nullptr : layer.balances[item];
  if (balance != nullptr) balance += layer.balance_at + head * D;
  for (std::int64_t g = 0; g < G; ++g) {
    float* const plain = part.plain + g * D;
    for (std::int64_t d = 0; d < D; ++d) plain[d] = to_float(*q.at(row, head * G + g, d));
    float* const rotated = part.rotated + g * D;
    for (std::int64_t d = 0; d < D; ++d) rotated[d] = balance != nullptr ? plain[d] / balance[d] : plain[d];
    rotate(rotated, static_cast<std::size_t>(D), layer.sketch.seed);
  }
  const tensor_view<const float, 2> plain(static_cast<const float*>(part.plain), G, D),
      rotated(static_cast<const float*>(part.rotated), G, D);
  const std::span states(part.states, static_cast<std::size_t>(G));
  const tensor_view<float, 2> sums(part.sums, G, Dv);
  const std::span stage(part.stage, static_cast<std::size_t>(part.stage_bytes));
  const row_options how{scale, options.soft_cap};
  std::fill(states.begin(), states.end(), softmax_state{});
  const token_range resident[] = {{0, begin}, {end, n}};
  attend_rows(serial, layer.rows, of.pages, head, plain, {resident, {}}, how, states, sums, stage);
  for (std::int64_t g = 0; g < G; ++g) part.lse[g] = part.states[g].lse();

  constexpr tiers others = host_retrieve::others_of<Reranker>();
  const tier_options tiered{others.value_bits > 0 && options.others.coded, others.tail && options.others.tail, options.others.skip};
  const bool ranks = !std::is_same_v<Reranker, pass_through>;
  const std::int64_t wanted = ranks ? candidate_count(options.breadth, by, end - begin, options.keep) : std::min(options.keep, end - begin);
  if (wanted > 0 && (options.keep > 0 || tiered.coded || tiered.tail)) {
    const std::int32_t* const column_pages = layer.columns_of[item].pages;
    const bucket_zone zone{page, layer.columns, head, column_pages, begin, end};
    std::int64_t found = search_buckets(serial, layer.sketch, by, zone, {rotated, plain, part.lse, scale}, options.breadth, wanted,
                                        part.ids, stage, part.page_dots);
    std::int32_t* ids = part.ids;
    std::int32_t* positions = part.chosen;
    if (tiered.coded && tiered.tail) {
      found = complete_pages(zone, {ids, static_cast<std::size_t>(found)}, positions);
      std::swap(ids, positions);
    }
    std::span<const std::int32_t> chosen(ids, static_cast<std::size_t>(found));
    if constexpr (!std::is_same_v<Reranker, pass_through>) {
      if (found > options.keep || !layer.sketch.norms || tiered.coded ||
          tiered.tail) {  // a scan without norms proposes keys of NaN too: here they fall
        const bool reads_rows = std::is_same_v<Reranker, exact>;
        const head_view<E> from{layer.rows, layer.columns, reads_rows ? of.pages : column_pages, head};
        const tensor_view<float, 2> logits(part.logits, G, found);
        const float* const dots = leaves_page_dots(layer.sketch, by) ? part.page_dots : nullptr;
        rerank(serial, reranker, layer.sketch, from, {plain, rotated, scale, dots, zone.first_page()}, chosen, logits, stage);
        const std::span scores(part.scores, chosen.size());
        group_scores(serial, reranker.rule, read_only(logits), {part.lse, static_cast<std::size_t>(G)}, scores, stage);
        const top_k_result best = top_k<std::int32_t>(serial, scores, options.keep, std::span(positions, chosen.size()));
        chosen = {positions, static_cast<std::size_t>(best.taken)};
        if constexpr (any(others)) {
          if (tiered.coded || tiered.tail) {
            tensor_view<float, 2> taken_out = logits;                                               // (G, C) or (G, K)
            std::span<const std::int32_t> members(ids, static_cast<std::size_t>(found));
            if (!tiered.coded) {  // what is not chosen stays in the tail
              for (std::int64_t g = 0; g < G; ++g) {
                for (std::int64_t i = 0; i < best.taken; ++i) *logits.at(g, i) = *logits.at(g, positions[i]);
              }
              taken_out.extents[1] = best.taken;
              for (std::int64_t i = 0; i < best.taken; ++i) {
                ids[i] = ids[positions[i]];
                positions[i] = static_cast<std::int32_t>(i);
              }
              members = members.first(static_cast<std::size_t>(best.taken));
            }
            attend_tiers<others.value_bits>(
                {zone, layer.values, others.value_bits, layer.sketch.seed, members, chosen, plain, dots, scale, options.soft_cap}, tiered,
                taken_out, states, sums, stage);
          }
        }
        for (std::int64_t i = 0; i < best.taken; ++i) positions[i] = ids[positions[i]];
      }
    }
    attend_rows(serial, layer.rows, of.pages, head, plain, {{}, chosen}, how, states, sums, stage);
  }
  tensor_view<T, 2> to(out.at(row, head * G, 0), G, Dv);
  to.strides[0] = out.strides[1];
  to.strides[1] = out.strides[2];
  finish_rows<T>(serial, states, read_only(sums), to);
  if (lse.data == nullptr) return;
  for (std::int64_t g = 0; g < G; ++g) *lse.at(row, head * G + g) = part.states[g].lse();
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
  host_retrieve::parts<Reranker>(size, layer.sketch, by, reranker, page, q.extents[1] / H, most);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const first = static_cast<std::byte*>(std::align(64, 1, start, space));
  const std::int64_t workers = host_dense::workers_of(exec, units);
  std::atomic<std::int64_t> claimed{0};
  for_each_task(exec, workers, [&](std::int64_t worker) {
    scratch_parts memory{first + worker * size.used};
    const host_retrieve::parts<Reranker> part(memory, layer.sketch, by, reranker, page, q.extents[1] / H, most);
    for (std::int64_t i = claimed.fetch_add(1); i < units; i = claimed.fetch_add(1)) {
      std::size_t item = 0;
      std::int64_t query = i / H;
      while (query >= layer.rows_of[item].queries) query -= layer.rows_of[item++].queries;
      retrieve_head(layer, by, reranker, page, item, query, i % H, q, out, lse, options, part);
    }
  });
}

}  // namespace kvx
