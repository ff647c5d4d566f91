#pragma once
// Attention of decode steps over {sink, selected, recent} on the device: five launches for all new tokens and KV heads of a batch, six in
// tiers.

#include <kvx/attend/cuda/fetched_rows.cuh>
#include <kvx/attend/cuda/retrieve_arrays.cuh>
#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/cuda/tiers.cuh>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/cuda/sign_buckets.cuh>
#include <kvx/index/cuda/sign_sums.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/layout/cuda/fetch_rows.cuh>
#include <kvx/layout/hot_rows.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/cuda/exact.cuh>
#include <kvx/rerank/cuda/page_terms.cuh>
#include <kvx/rerank/cuda/rsq_ip.cuh>
#include <kvx/rerank/exact.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/sketch/cuda/energies.cuh>
#include <kvx/transform/cuda/srht.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvx {

/// What the kernel that prepares units is told.
template <class E, class T>
struct prepare_call {
  device_retrieve_layer<E> layer;
  scanned_columns columns;
  tensor_view<const T, 3> q;                                                             // (N, Q, D)
  retrieve_arrays to;
  score_rule rule;
  tile_memory memory;
  float scale = 1;
  double kappa = 1;
};

/// One unit: its queries as codes want them, exact attention to its residents, and its search prepared with their log-sum-exp.
///
/// Words, Wide     as for_sign_sum_shape says; Words 0: the search counts votes, and is prepared elsewhere
template <int Threads, int Pairs, int Words, bool Wide, class E, class T>
__global__ void __launch_bounds__(Threads, 2) prepare_units_kernel(prepare_call<E, T> call) {
  __shared__ sign_words signs;
  __shared__ const float* balance;
  __shared__ bf16* energies;
  __shared__ unit_zone zone;
  const device_retrieve_layer<E>& layer = call.layer;
  const std::int64_t unit = blockIdx.x, H = layer.rows.heads, row = unit / H, head = unit % H;
  const int G = call.to.search.group, D = layer.rows.key_dim, Dv = layer.rows.value_dim;
  const batch_token token = token_of_block(layer.rows_of, row);
  if (token.query < 0) return;
  if (threadIdx.x == 0) {
    balance = layer.balances != nullptr ? layer.balances[token.entry] : nullptr;
    if (balance != nullptr) balance += layer.learned_at + head * D;
    energies = layer.samples != nullptr ? layer.samples[row] : nullptr;
    if (energies != nullptr) energies += layer.learned_at + head * D;
  }
  fill_sign_words(layer.sketch.seed, D, signs);
  __syncthreads();

  float* const plain = call.to.plain + unit * G * D;                                     // (G, D)
  float* const rotated = call.to.rotated + unit * G * D;                                 // (G, D)
  softmax_state* const states = call.to.states + unit * G;                               // (G)
  rotate_queries<Threads>(call.q, row, head * G, G, D, balance, signs, plain, rotated);
  const key_places residents = resident_places(layer.zones, token.item, token.query, layer.rows.page_tokens);
  const paged_source<E> source{layer.rows, token.item.pages, head};
  attend_in_block<Threads, Pairs, E, T>(
      call.memory, dynamic_shared<std::byte>(), source, residents, [&](int g) { return call.q.at(row, head * G + g, 0); },
      call.q.strides[2], G, D, Dv, call.rule, states, call.to.sums + unit * G * Dv, Dv);
  __syncthreads();
  if (energies != nullptr) write_energies<Threads>([&](int g, int d) { return plain[g * D + d]; }, G, D, energies);
  if constexpr (Words > 0) {
    float* const lse = call.to.lse + unit * G;                                           // (G)
    for (int g = static_cast<int>(threadIdx.x); g < G; g += Threads) lse[g] = states[g].lse();
    share_zone(call.to.search, layer.columns_of, unit, zone);
    const device_queries in{call.to.rotated, call.to.plain, call.to.lse, call.scale};
    prepare_sign_sums<Threads, Words, Wide>(call.to.search, call.columns, zone, unit, in.of_unit(unit, G, D), call.kappa,
                                            dynamic_shared<std::byte>());
  } else {
    for (int g = static_cast<int>(threadIdx.x); g < G; g += Threads) call.to.lse[unit * G + g] = states[g].lse();
  }
}

/// Launches it.
template <page_shape Page, class E, class T>
void prepare_units(const device& exec, const prepare_call<E, T>& call) {
  constexpr int pairs = Page.value_dim <= 128 ? narrow_pairs : wide_pairs;
  const bucket_search& search = call.to.search;
  const std::int64_t shared = search.by.score == bucket_scoring::rule::votes ? 0 : prepare_sign_sums_shared(search);
  const std::int64_t tile = call.memory.bytes;
  const launch_shape shape{dim3(static_cast<unsigned>(search.units())), attend_threads,
                           static_cast<std::size_t>(shared > tile ? shared : tile)};
  if (search.by.score == bucket_scoring::rule::votes)
    return launch(exec, shape, prepare_units_kernel<attend_threads, pairs, 0, false, E, T>, call);
  constexpr bool wide = plane_bytes(Page.key_dim) > simd::narrow_planes;
  const int words = sign_sum_record_of(search.sketch, search.by, Page.key_dim, search.group).words;
  if (words == 1) return launch(exec, shape, prepare_units_kernel<attend_threads, pairs, 1, wide, E, T>, call);
  if (words == 2) return launch(exec, shape, prepare_units_kernel<attend_threads, pairs, 2, wide, E, T>, call);
  launch(exec, shape, prepare_units_kernel<attend_threads, pairs, 4, wide, E, T>, call);
}

/// Attention of the new tokens of a batch over the sinks, the recent tokens and what is selected for each KV head.
///
/// what        launches: prepare (queries, attention to residents, search); scan; select; rerank, whose last block of a unit chooses;
///             attention to the chosen rows, whose last block of a unit merges and finishes. Votes add two and a memset, before the scan;
///             codes with a centre one, before the reranking, where the search has not left the pages' terms; tiers one behind it
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view, N = rows_of.tokens; scratch and counters of
///             attend_retrieved_scratch for rows_of.tokens and rows_of.longest
///             far: offloaded_rows where pages may lie far; that adds a launch, which fetches what was chosen
/// zones       within a step every token uses the edge of the committed length before it
/// exactness   candidates and choices are integers and sums in fixed order; they follow the residents' log-sum-exp, whose last bits differ
///             from the host's: choices may differ among scores that are closer than these. The same bits on every run and launch
/// errors      usage_error for shapes that do not fit; lengths and page tables are read on the device, and not checked
/// source      ParisKV (arXiv 2602.07721) sections 2 to 5
template <page_shape Page, element E, element T, class Reranker, class Far = all_near>
void attend_retrieved(const device& exec, const device_retrieve_layer<E>& layer, const bucket_scoring& by, const Reranker& reranker,
                      tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse, const retrieve_options& options,
                      std::int64_t whole_below, std::span<std::byte> scratch, std::span<unsigned> counters, const Far& far = {},
                      call_site where = call_site::here()) {
  constexpr bool fetches = !std::is_same_v<Far, all_near>;
  const device_batch& batch = layer.rows_of;
  if (batch.tokens == 0) return;
  require_device_budget(options.budget, where);
  const bucket_search_shape shape = retrieve_shape<Reranker>(layer.sketch, by, layer.zones, Page, layer.rows.heads, q.extents[1],
                                                             batch.tokens, batch.longest, options, whole_below);
  require_device_search(shape, where);
  scratch_parts memory{scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256};
  prepare_call<E, T> call{layer,
                          scanned_columns_of(layer.columns),
                          q,
                          retrieve_arrays(exec, layer.rows, shape, options.budget, memory, fetches),
                          rule_of(options.scale, options.soft_cap, Page.key_dim),
                          tile_memory_of<E, T>(group_rows, Page.key_dim, Page.value_dim),
                          logit_scale(options.scale, Page.key_dim),
                          sign_worth(Page.key_dim)};
  retrieve_arrays& to = call.to;
  require(static_cast<std::int64_t>(scratch.size()) >= memory.used + 256 && static_cast<std::int64_t>(counters.size()) >= to.counters,
          "attend_retrieved: scratch is smaller than attend_retrieved_scratch", where);
  const std::span<unsigned> tickets = counters.first(static_cast<std::size_t>(to.tickets));
  unsigned* const tier_tickets = counters.data() + to.tickets;
  to.members.counters = tier_tickets + to.tier_tickets;
  to.chosen.counters = to.members.counters + to.member_counters;

  prepare_units<Page>(exec, call);
  if (by.score == bucket_scoring::rule::votes) {
    count_buckets(exec, to.search, call.columns, layer.columns_of);
    prepare_votes(exec, to.search, layer.columns_of, {to.rotated, to.plain, to.lse, call.scale});
  }
  constexpr tiers kept = tiers_of<Reranker>();
  const tier_options others = tiers_used(kept, options.others);
  if (others.any()) {
    scan_buckets(exec, to.search, call.columns, layer.columns_of, where);
    select_members(exec, to.search, layer.columns_of, to.members, others.coded && others.tail, where);
  } else {
    find_candidates(exec, to.search, call.columns, layer.columns_of, where);
  }
  row_ids ids{to.search.ids, to.search.counts, to.search.id_pitch, to.search.id_pitch};
  if constexpr (!std::is_same_v<Reranker, pass_through>) {
    if (others.any()) ids = {to.members.ids, to.members.counts, to.members.id_pitch, to.members.id_pitch};
    const rerank_input in = to.ranked_among(ids, layer.zones, Page.tokens, call.scale);
    if constexpr (std::is_same_v<Reranker, exact>) {
      rerank(exec, reranker, layer.sketch, layer.rows, batch, in, to.chosen, far);
    } else {
      const zones* const whole = others.tail ? &layer.zones : nullptr;
      if (to.page_dots != to.search.page_dots)
        leave_page_dots(exec, Page, layer.columns, layer.columns_of, in, to.chosen, to.page_dots, whole);
      rerank(exec, reranker, layer.sketch, Page, layer.columns, layer.columns_of, in, to.chosen);
      if constexpr (any(kept)) {
        if (others.any())
          attend_tiers<kept.value_bits>(exec, Page, layer.zones, layer.sketch.seed, layer.columns_of, to.members, in, to.chosen,
                                        reranker.rule, layer.values, others, options.soft_cap, to.states, to.sums, to.tiers, tier_tickets,
                                        where);
      }
    }
    ids = {to.chosen.chosen, to.chosen.chosen_counts, to.chosen.chosen_pitch, to.chosen.chosen_pitch};
  }
  const auto attend = [&](const auto& lying) {
    attend_chosen<E, T>(exec, layer.rows, batch, q, ids, {options.scale, options.soft_cap}, to.states, to.sums, out, lse,
                        {to.attend, static_cast<std::size_t>(to.attend_bytes)}, tickets, lying, where);
  };
  if constexpr (fetches) {
    auto* const found = reinterpret_cast<const E**>(to.found);
    fetch_rows<E>(exec, layer.rows, far.far, far.hot, batch, ids, found);
    attend(fetched_rows<E>{found, ids.pitch, layer.rows.value.data - layer.rows.key.data});
  } else {
    attend(far);
  }
}

}  // namespace kvx
