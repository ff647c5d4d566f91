#pragma once
// One layer's attention for a batch: which entries retrieve, which attend to everything, which see a window.

#include <kvx/attend/audit.hpp>
#include <kvx/attend/host/audit.hpp>
#include <kvx/attend/host/dense.hpp>
#include <kvx/attend/host/pages.hpp>
#include <kvx/attend/host/retrieve.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/layer_kind.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/spec.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx {

/// The entries of a step as one layer sees them; see retrieve_layer and page_layer.
struct attend_batch {
  std::span<const batch_item> rows_of;
  std::span<const batch_item> columns_of;
  std::span<const float* const> balances;
  std::int64_t balance_at = 0;
  std::span<const reservation::part> sequences;
  const tree_lists* lists = nullptr;
  kept_pages* kept = nullptr;

  attend_batch part(std::size_t first, std::size_t count) const {
    return {rows_of.subspan(first, count),
            columns_of.subspan(first, count),
            balances.empty() ? balances : balances.subspan(first, count),
            balance_at,
            sequences.subspan(first, count),
            lists,
            kept};
  }
};

/// Whether an entry retrieves in a layer that can.
inline bool retrieves_now(const batch_item& item, const zones& by, const attend_options& options) {
  if (options.path != attend_options::route::by_length) return options.path == attend_options::route::retrieve;
  return item.queries <= most_retrieving_tokens && item.length >= dense_below(by, options.keep);
}

/// Bytes of scratch that attend_layer needs for any layer of a cache whose new tokens are `batch`, with the threads that exec has now.
template <class Spec, class Memory>
std::int64_t attend_layer_scratch(const host& exec, const Spec& spec, const Memory& place, std::span<const batch_item> batch,
                                  int query_heads) {
  std::int64_t scratch = attend_dense_scratch(exec, place.rows, batch, query_heads);
  using index = typename Spec::index_type;
  std::int64_t longest = 0, tokens = 0;
  for (const batch_item& item : batch) {
    longest = std::max(longest, item.length);
    tokens += item.queries;
  }
  constexpr page_shape page = Spec::layout_type::shape;
  if constexpr (packs_blocks<index>) {
    scratch =
        std::max(scratch, attend_pages_scratch(exec, Spec::coded, spec.reranker, page, place.rows.heads, query_heads, tokens, longest));
  } else if constexpr (reads_sketch<index>) {
    scratch = std::max(scratch, attend_retrieved_scratch(exec, Spec::sketch, index::scoring, spec.reranker, page, place.rows.heads,
                                                         query_heads, tokens, longest));
  }
  return scratch;
}

/// Adds to an audit how far the attention of a batch is from dense attention.
template <class E, class T>
void audit_layer(const host& exec, const row_view<const E>& rows, std::span<const batch_item> batch, tensor_view<const T, 3> q,
                 tensor_view<const T, 3> out, tensor_view<const float, 2> lse, const dense_options& how, attention_audit& audit,
                 std::span<std::byte> scratch) {
  std::vector<T> dense_out(static_cast<std::size_t>(out.extents[0] * out.extents[1] * out.extents[2]));
  std::vector<float> dense_lse(static_cast<std::size_t>(out.extents[0] * out.extents[1]));
  const tensor_view<T, 3> dense(dense_out.data(), out.extents[0], out.extents[1], out.extents[2]);
  const tensor_view<float, 2> dense_sums(dense_lse.data(), out.extents[0], out.extents[1]);
  attend_dense<E, T>(exec, rows, batch, q, dense, dense_sums, how, scratch);
  audit_attention<T>(exec, out, lse, read_only(dense), read_only(dense_sums), audit);
}

/// Attention of entries that retrieve.
template <class Spec, class Memory, class T>
void attend_retrieving(const host& exec, const Spec& spec, const Memory& place, const attend_batch& run, tensor_view<const T, 3> q,
                       tensor_view<T, 3> out, tensor_view<float, 2> lse, const attend_options& options, std::span<std::byte> scratch) {
  using E = typename Spec::layout_type::element_type;
  using index = typename Spec::index_type;
  constexpr page_shape page = Spec::layout_type::shape;
  if constexpr (packs_blocks<index>) {
    const page_layer<E, index::shape> layer{&spec.index,    place.rows,    place.side, Spec::sketch, Spec::zones,   run.rows_of,
                                            run.columns_of, run.sequences, run.lists,  run.kept,     place.ordinal, place.far};
    attend_pages<Spec::coded, E, T>(exec, layer, spec.reranker, page, q, out, lse,
                                    {options.keep, options.pages, options.scale, options.soft_cap, options.others}, scratch);
  } else {
    attend_retrieved<E, T>(exec,
                           {place.rows, key_columns_of(place.side), Spec::sketch, Spec::zones, run.rows_of, run.columns_of, run.balances,
                            run.balance_at, value_columns_of(place.side), place.far},
                           index::scoring, spec.reranker, page, q, out, lse,
                           {options.keep, options.breadth, options.scale, options.soft_cap, options.others, options.budget}, scratch);
  }
}

/// Attention of the new tokens of a batch in one layer.
///
/// shapes      q (N, Q, D)   out (N, Q, Dv)   options.lse (N, Q) or null
/// scratch     of attend_layer_scratch bytes
template <class Spec, class Memory, class T>
void attend_layer(const host& exec, const Spec& spec, const Memory& place, const layer_kind& kind, const attend_batch& batch,
                  tensor_view<const T, 3> q, tensor_view<T, 3> out, const attend_options& options, std::span<std::byte> scratch) {
  using E = typename Spec::layout_type::element_type;
  std::vector<float> own_lse;
  tensor_view<float, 2> lse(options.lse, q.extents[0], q.extents[1]);
  const dense_options dense{options.scale, options.soft_cap, kind.tokens, kind.sink};
  if constexpr (reads_sketch<typename Spec::index_type> || packs_blocks<typename Spec::index_type>) {
    if (place.retrieves) {
      if (options.audit != nullptr && options.lse == nullptr) {
        own_lse.resize(static_cast<std::size_t>(q.extents[0] * q.extents[1]));
        lse.data = own_lse.data();
      }
      // Entries of one route that follow each other are computed together.
      for (std::size_t i = 0, end = 0; i < batch.rows_of.size(); i = end) {
        const bool retrieve = retrieves_now(batch.rows_of[i], Spec::zones, options);
        for (end = i + 1; end < batch.rows_of.size() && retrieves_now(batch.rows_of[end], Spec::zones, options) == retrieve;) ++end;
        const attend_batch run = batch.part(i, end - i);
        if (retrieve) {
          attend_retrieving<Spec, Memory, T>(exec, spec, place, run, q, out, lse, options, scratch);
        } else {
          attend_dense<E, T>(exec, place.rows, run.rows_of, q, out, lse, dense, scratch);
        }
      }
      if (options.audit != nullptr)
        audit_layer<E>(exec, place.rows, batch.rows_of, q, read_only(out), read_only(lse), dense, *options.audit, scratch);
      return;
    }
  }
  attend_dense<E, T>(exec, place.rows, batch.rows_of, q, out, lse, dense, scratch);
}

}  // namespace kvx
