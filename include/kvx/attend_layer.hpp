#pragma once
// One layer's attention for a batch: which entries retrieve, which attend to everything, which see a window.

#include <kvx/attend/host/dense.hpp>
#include <kvx/attend/host/retrieve.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/layer_kind.hpp>
#include <kvx/spec.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// The entries of a step as one layer sees them; see retrieve_layer.
struct attend_batch {
  std::span<const batch_item> rows_of;
  std::span<const batch_item> columns_of;
  std::span<const float* const> balances;
  std::int64_t balance_at = 0;

  attend_batch part(std::size_t first, std::size_t count) const {
    return {rows_of.subspan(first, count), columns_of.subspan(first, count), balances.empty() ? balances : balances.subspan(first, count),
            balance_at};
  }
};

/// Whether an entry retrieves in a layer that can.
inline bool retrieves_now(const batch_item& item, const zones& by, const attend_options& options) {
  if (options.path != attend_options::route::by_length) return options.path == attend_options::route::retrieve;
  return item.queries <= most_retrieving_tokens && item.length >= dense_below(by, options.keep);
}

/// Attention of the new tokens of a batch in one layer.
///
/// shapes      q (N, Q, D)   out (N, Q, Dv)   options.lse (N, Q) or null
/// scratch     of attend_dense_scratch and, where the composition retrieves, attend_retrieved_scratch bytes
template <class Spec, class Memory, class T>
void attend_layer(const host& exec, const Spec& spec, const Memory& place, const layer_kind& kind, const attend_batch& batch,
                  tensor_view<const T, 3> q, tensor_view<T, 3> out, const attend_options& options, std::span<std::byte> scratch) {
  using E = typename Spec::layout_type::element_type;
  const tensor_view<float, 2> lse(options.lse, q.extents[0], q.extents[1]);
  const dense_options dense{options.scale, options.soft_cap, kind.tokens, kind.sink};
  if constexpr (reads_sketch<typename Spec::index_type>) {
    if (place.retrieves) {
      // Entries of one route that follow each other are computed together.
      for (std::size_t i = 0, end = 0; i < batch.rows_of.size(); i = end) {
        const bool retrieve = retrieves_now(batch.rows_of[i], Spec::zones, options);
        for (end = i + 1; end < batch.rows_of.size() && retrieves_now(batch.rows_of[end], Spec::zones, options) == retrieve;) ++end;
        const attend_batch run = batch.part(i, end - i);
        if (retrieve) {
          attend_retrieved<E, T>(
              exec, {place.rows, place.side, Spec::sketch, Spec::zones, run.rows_of, run.columns_of, run.balances, run.balance_at},
              Spec::index_type::scoring, spec.reranker, Spec::layout_type::shape, q, out, lse,
              {options.keep, options.breadth, options.scale, options.soft_cap}, scratch);
        } else {
          attend_dense<E, T>(exec, place.rows, run.rows_of, q, out, lse, dense, scratch);
        }
      }
      return;
    }
  }
  attend_dense<E, T>(exec, place.rows, batch.rows_of, q, out, lse, dense, scratch);
}

}  // namespace kvx
