#pragma once
// Attention of decode steps over {sink, members of the pages found, recent} on the device: four launches for all new tokens and KV heads,
// one more where zones are long, and those of a reranker.

#include <kvx/attend/cuda/fetched_rows.cuh>
#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/attend/cuda/page_tiers.cuh>
#include <kvx/attend/cuda/residents.cuh>
#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/cuda/tiers.cuh>
#include <kvx/attend/pages.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/cuda/fetch_pages.cuh>
#include <kvx/index/cuda/page_search.cuh>
#include <kvx/layout/cuda/fetch_rows.cuh>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/rerank/cuda/coded_pages.cuh>
#include <kvx/rerank/cuda/exact.cuh>
#include <kvx/rerank/cuda/page_terms.cuh>
#include <kvx/rerank/cuda/rsq_ip.cuh>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvx {

/// Attention of the new tokens of a batch over the sinks, the recent tokens and the members of the pages found for each KV head.
///
/// what        launches: residents (queries, attention to them); means, where sequences may be long enough (proposed_pages) behind their
///             codes, or where pages are ranked by coded_member (FindsByCodes) codes of members, and the dots of their page means if they
///             have a centre; pages, and their members; attention to these, whose last block of a unit merges and finishes. Where
///             positions take pages from others, the look and the pages twice. Before attention a reranker keeps the best of the
///             members: one launch more, codes with a centre two; tiers two more: what is left of the pages' means, and attention to
///             those and to coded members
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view, N = layer.batch.tokens; scratch and counters of attend_pages_scratch
///             for `shape`
///             far: where pages may lie far, offloaded_pages, whose slots take pages of which rows were chosen as a whole, or
///             offloaded_rows, whose slots take these rows; either adds a launch. What searches and ranks reads rows wherever they lie
/// zones       within a step every token uses the edge of the committed length before it
/// exactness   pages follow float sums of logits, which differ from the host's in their last bits: choices may differ among pages of equal
///             worth. The same bits on every run and launch
/// errors      usage_error for shapes that do not fit; lengths and page tables are read on the device, and not checked
/// source      IceCache (arXiv 2604.10539) sections 3 and 4
template <page_shape Page, bool FindsByCodes, element E, element T, class Reranker, class Far = all_near>
void attend_pages(const device& exec, const device_page_layer<E>& layer, const Reranker& reranker,
                  const page_search_shape<page_budget>& shape, tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse,
                  std::span<std::byte> scratch, std::span<unsigned> counters, const Far& far = {}, call_site where = call_site::here()) {
  constexpr bool by_rows = std::is_same_v<Far, offloaded_rows<E>>, by_pages = std::is_same_v<Far, offloaded_pages<E>>;
  const device_batch& batch = layer.batch;
  if (batch.tokens == 0) return;
  const page_options& options = shape.budget.options;
  scratch_parts memory{scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256};
  constexpr bool ranks_codes = requires { Reranker::bits; };
  page_call_arrays to(exec, layer.rows, shape, FindsByCodes || ranks_codes, memory, by_rows || by_pages);
  require(static_cast<std::int64_t>(scratch.size()) >= memory.used + 256 && static_cast<std::int64_t>(counters.size()) >= to.counters,
          "attend_pages: scratch is smaller than attend_pages_scratch", where);
  const resident_call<E, T> residents{layer,
                                      q,
                                      to.plain,
                                      to.rotated,
                                      to.lse,
                                      to.states,
                                      to.sums,
                                      rule_of(options.scale, options.soft_cap, Page.key_dim),
                                      tile_memory_of<E, T>(group_rows, Page.key_dim, Page.value_dim),
                                      shape.group};
  constexpr int pairs = Page.value_dim <= 128 ? narrow_pairs : wide_pairs;
  launch(exec,
         {.grid = dim3(static_cast<unsigned>(shape.units())),
          .threads = attend_threads,
          .shared_bytes = static_cast<std::size_t>(residents.memory.bytes)},
         attend_residents_kernel<attend_threads, pairs, E, T>, residents);
  page_search_call<E, page_budget, Far> search;
  static_cast<page_search_shape<page_budget>&>(search) = shape;
  search.rows = layer.rows;
  search.members = layer.members;
  search.means = layer.means;
  search.batch = batch;
  search.row_items = layer.rows_of.items;
  search.far = far;
  search.plain = to.plain;
  search.resident = to.lse;
  search.scale = logit_scale(options.scale, Page.key_dim);
  search.wide = rows_on_16(layer.rows.key);
  search.to = to.search;
  search.to.tickets = counters.data() + (to.counters - to.search_tickets);
  search.links = layer.links;
  search.places = layer.places;
  search.promoted = layer.promoted;
  search.kept = layer.kept;
  search.mean_codes = layer.mean_codes;
  row_ids ids = to.search.members();
  rerank_input in = to.ranked_among(ids, layer.zones, Page.tokens, search.scale);
  const auto dots = [&](const zones* whole) {
    rerank_shape all = to.chosen;
    all.heads = shape.heads;
    all.group = shape.group;
    all.tokens = shape.tokens;
    if (layer.sketch.centre) leave_page_dots(exec, Page, layer.codes, batch, in, all, to.page_dots, whole, where);
  };
  if constexpr (FindsByCodes) {
    constexpr int bits = [] {
      if constexpr (ranks_codes) return Reranker::bits;
      return 4;
    }();
    dots(&layer.zones);
    const auto by_codes = [&](const auto& call) { score_coded_pages<bits>(exec, call, layer.sketch, layer.codes, in, where); };
    search_pages(exec, search, by_codes, where);
  } else {
    search_pages(exec, search, where);
  }
  if constexpr (!std::is_same_v<Reranker, pass_through>) {
    to.chosen.counters = counters.data() + to.tickets + to.tier_tickets;
    const tier_options& others = shape.budget.others;
    if (others.any()) in.missed = to.search.missed;
    if constexpr (ranks_codes) {
      if constexpr (!FindsByCodes) dots(nullptr);
      rerank(exec, reranker, layer.sketch, Page, layer.codes, batch, in, to.chosen);
      if constexpr (any(tiers_of<Reranker>())) {
        if (others.any()) {
          key_columns means;
          means[column_means] = layer.means;
          leave_page_dots(exec, Page, means, batch, in, to.chosen, to.page_dots, &layer.zones);
          const page_tier_members members{to.search, layer.members, Page.tokens, packed_page::entry_bytes(shape.index)};
          attend_tiers<tiers_of<Reranker>().value_bits>(exec, Page, layer.zones, layer.sketch.seed, batch, members, in, to.chosen,
                                                        reranker.rule, layer.values, others, options.soft_cap, to.states, to.sums, to.tiers,
                                                        counters.data() + to.tickets, where);
        }
      }
    } else {
      rerank(exec, reranker, layer.sketch, layer.rows, layer.rows_of, in, to.chosen, far);
    }
    ids = {to.chosen.chosen, to.chosen.chosen_counts, to.chosen.chosen_pitch, to.chosen.chosen_pitch};
  }
  const auto attend = [&](const auto& lying) {
    attend_chosen<E, T>(exec, layer.rows, layer.rows_of, q, ids, {options.scale, options.soft_cap}, to.states, to.sums, out, lse,
                        {to.attend, static_cast<std::size_t>(to.attend_bytes)}, counters.first(static_cast<std::size_t>(to.tickets)), lying,
                        where);
  };
  if constexpr (by_pages) fetch_pages(exec, search, std::is_same_v<Reranker, pass_through> ? row_ids{} : ids);
  if constexpr (by_rows) {
    auto* const found = reinterpret_cast<const E**>(to.found);
    fetch_rows<E>(exec, layer.rows, far.far, far.hot, layer.rows_of, ids, found);
    attend(fetched_rows<E>{found, ids.pitch, layer.rows.value.data - layer.rows.key.data});
  } else {
    attend(far);
  }
}

}  // namespace kvx
