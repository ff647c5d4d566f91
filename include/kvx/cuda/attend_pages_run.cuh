#pragma once
// Attention over semantic pages in a cache on the device: one run of new tokens, in one layer.

#include <kvx/attend/cuda/pages.cuh>
#include <kvx/attend/tiers.hpp>
#include <kvx/attend_options.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/cuda/pack_block.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/spec.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvx {

/// What a device finds semantic pages by.
template <class Spec>
constexpr bool device_packs = [] {
  using index = typename Spec::index_type;
  if constexpr (packs_blocks<index>) {
    constexpr dci_shape shape = index::shape;
    static_assert(!keeps_links(shape) || !offloads<typename Spec::layout_type>(),
                  "semantic pages on a device: a tree compares a new block with keys of all others, which may be far");
    static_assert(shape.block <= most_packed_tokens, "semantic pages on a device: blocks of at most 1,024 tokens");
  }
  return packs_blocks<index>;
}();

/// Whether a reranker keeps the best of the tokens found.
template <class Spec>
constexpr bool device_ranks = !std::is_same_v<typename Spec::reranker_type, pass_through>;

/// Whether queries are learned from that lie in a column beside the rows.
template <class Spec>
constexpr bool device_learns = [] {
  if constexpr (device_packs<Spec>) return learns_metric(Spec::index_type::shape);
  return false;
}();

/// The search of a run of so many new tokens.
template <class Spec>
page_search_shape<page_budget> pages_of_run(const cache_parts<Spec>& of, std::int64_t tokens, std::int64_t longest,
                                            const attend_options& options, std::int64_t whole_below) {
  return page_search_of(Spec::index_type::shape, of.spec.index.rule, of.spec.index.interleave, Spec::layout_type::shape, Spec::zones,
                        of.geometry.kv_heads, of.geometry.query_heads, tokens, longest,
                        {options.keep, options.pages, options.scale, options.soft_cap}, device_ranks<Spec>,
                        tiers_used(Spec::others, options.others), whole_below);
}

/// shapes      q, out, lse: the rows of the run
/// batch       of columns; rows_of: the same under the frames of rows; far: where these lie that are not near
/// kept        selections of this layer that are used again
/// promoted    tokens of the tree, where one is kept
/// learns      queries of the positions that are learned from are written down
template <class Spec, class T, class Far>
void attend_pages_run(const device& exec, const cache_parts<Spec>& of, int layer, const device_batch& batch, const device_batch& rows_of,
                      const Far& far, const kept_pages_of_layer& kept, bool learns, const promoted_tokens& promoted,
                      tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse, const attend_options& options,
                      std::int64_t whole_below, std::span<std::byte> scratch, std::span<unsigned> counters, call_site where) {
  using E = typename Spec::layout_type::element_type;
  constexpr page_shape page = Spec::layout_type::shape;
  const auto& place = of.layer(layer);
  device_page_layer<E> from{
      place.rows, place.side[column_members], place.side[column_member_means], {}, {}, Spec::sketch, Spec::zones, batch, rows_of};
  from.links = place.side[column_links];
  from.places = place.side[column_places];
  from.promoted = promoted;
  from.mean_codes = place.side[column_mean_codes];
  if constexpr (Spec::coded) from.codes = codes_of(place.side);
  if constexpr (any(Spec::others)) from.values = page_values_of(place.side);
  if constexpr (device_learns<Spec>) {
    if (learns) from.energies = energies_of(place.side, page);
  }
  from.kept = kept;
  constexpr bool by_codes = Spec::index_type::shape.rank == dci_shape::ranking::coded_member;
  attend_pages<page, by_codes, E, T>(exec, from, of.spec.reranker, pages_of_run(of, batch.tokens, batch.longest, options, whole_below), q,
                                     out, lse, scratch, counters, far, where);
}

}  // namespace kvx
