#pragma once
// Attention of decode steps over {sink, members of the pages found, recent} on the device: four launches for all new tokens and KV heads.

#include <kvx/attend/cuda/attend_memory.cuh>
#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/pages.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/cuda/page_search.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/cuda/energies.cuh>

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// One layer as retrieval from semantic pages on the device reads it.
///
/// batch       items under the ids of pages and of their columns, which are the same
/// energies    where queries that are learned from go; null data for nowhere
template <class E>
struct device_page_layer {
  row_view<const E> rows;
  column_array members;
  column_array means;
  energy_column energies;
  kvx::zones zones;
  device_batch batch;
};

/// What a unit may spend: see wanted_pages.
struct page_budget {
  page_options options;
  bool ranks = false;

  KVX_HD constexpr std::int64_t wanted(std::int64_t page_tokens, std::int64_t zone_pages) const {
    return options.keep > 0 ? wanted_pages(options, page_tokens, ranks, false, zone_pages) : 0;
  }
};
static_assert(page_budget{{.keep = 192}}.wanted(16, 400) == 12 && page_budget{{.keep = 0, .pages = {.pages = 3}}}.wanted(16, 400) == 0);

/// What one call leaves for its own launches; a unit is a new token and a KV head.
///
/// plain       (units, G, D) queries
/// lse, states (units, G) of the residents; sums (units, G, Dv)
struct page_call_arrays {
  page_search_arrays search;
  float* plain = nullptr;
  float* lse = nullptr;
  softmax_state* states = nullptr;
  float* sums = nullptr;
  std::byte* attend = nullptr;
  std::int64_t attend_bytes = 0;
  std::int64_t tickets = 0;

  template <class E>
  page_call_arrays(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape, scratch_parts& memory)
      : search(shape, memory) {
    const std::int64_t units = shape.units(), G = shape.group;
    plain = memory.take<float>(units * G * rows.key_dim);
    lse = memory.take<float>(units * G);
    states = memory.take<softmax_state>(units * G);
    sums = memory.take<float>(units * G * rows.value_dim);
    attend_bytes = attend_rows_scratch(exec, rows, shape.tokens, G * shape.heads, search.id_pitch);
    attend = memory.take<std::byte>(attend_bytes);
    tickets = attend_rows_tickets(exec, rows, shape.tokens, G * shape.heads);
  }
};

/// What the kernel of residents is told.
template <class E, class T>
struct resident_call {
  device_page_layer<E> layer;
  tensor_view<const T, 3> q;                                                             // (N, Q, D)
  float* plain = nullptr;                                                                // (units, G, D)
  float* lse = nullptr;                                                                  // (units, G)
  softmax_state* states = nullptr;                                                       // (units, G)
  float* sums = nullptr;                                                                 // (units, G, Dv)
  score_rule rule;
  tile_memory memory;
  int group = 1;
};

/// One unit: its queries as floats and, where they are learned from, their energies; exact attention to its residents.
template <int Threads, int Pairs, class E, class T>
__global__ void __launch_bounds__(Threads, 2) attend_residents_kernel(resident_call<E, T> call) {
  const device_page_layer<E>& layer = call.layer;
  const std::int64_t unit = blockIdx.x, H = layer.rows.heads, row = unit / H, head = unit % H;
  const int G = call.group, D = layer.rows.key_dim, Dv = layer.rows.value_dim;
  const batch_token token = token_of_block(layer.batch, row);
  if (token.query < 0) return;
  const auto query = [&](int g, int d) { return to_float(*call.q.at(row, head * G + g, d)); };
  float* const plain = call.plain + unit * G * D;                                        // (G, D)
  for (int i = static_cast<int>(threadIdx.x); i < G * D; i += Threads) plain[i] = query(i / D, i % D);
  if (layer.energies.at.data != nullptr && is_learned_from(token.position()))
    write_energies<Threads>(query, G, D, layer.energies.sample(token.item.pages, head, token.position()));
  softmax_state* const states = call.states + unit * G;                                  // (G)
  const key_places residents = resident_places(layer.zones, token.item, token.query, layer.rows.page_tokens);
  const paged_source<E> source{layer.rows, token.item.pages, head};
  attend_in_block<Threads, Pairs, E, T>(
      call.memory, dynamic_shared<std::byte>(), source, residents, [&](int g) { return call.q.at(row, head * G + g, 0); },
      call.q.strides[2], G, D, Dv, call.rule, states, call.sums + unit * G * Dv, Dv);
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < G; g += Threads) call.lse[unit * G + g] = states[g].lse();
}

/// What attention over semantic pages is planned for.
///
/// whole_below     sequences that hold fewer committed tokens than this keep their whole zone
inline page_search_shape<page_budget> page_search_of(const dci_shape& index, group_rule rule, page_shape page, const zones& cut, int heads,
                                                     std::int64_t query_heads, std::int64_t tokens, std::int64_t longest,
                                                     const page_options& options, std::int64_t whole_below) {
  page_search_shape<page_budget> s;
  s.index = index;
  s.page_tokens = page.tokens;
  s.cut = cut;
  s.heads = heads;
  s.group = static_cast<int>(query_heads / heads);
  s.tokens = tokens;
  s.longest = longest;
  s.budget = {options, false};
  s.how.probes = options.pages.probes;
  s.how.rule = rule;
  s.whole_below = whole_below;
  return s;
}

/// What attend_pages needs for a batch of so many new tokens in sequences of at most `longest` tokens. A pure function.
template <class E>
attend_memory attend_pages_scratch(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape) {
  scratch_parts size;
  const page_call_arrays arrays(exec, rows, shape, size);
  return {size.used + 256, arrays.tickets};
}

/// Attention of the new tokens of a batch over the sinks, the recent tokens and the members of the pages found for each KV head.
///
/// what        launches: residents (queries, attention to them); means; pages, and their members; attention to these, whose last block of a
///             unit merges and finishes
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view, N = layer.batch.tokens; scratch and counters of attend_pages_scratch
///             for `shape`
/// zones       within a step every token uses the edge of the committed length before it
/// exactness   pages follow float sums of logits, which differ from the host's in their last bits: choices may differ among pages of equal
///             worth. The same bits on every run and launch
/// errors      usage_error for shapes that do not fit; lengths and page tables are read on the device, and not checked
/// source      IceCache (arXiv 2604.10539) sections 3 and 4
template <page_shape Page, element E, element T>
void attend_pages(const device& exec, const device_page_layer<E>& layer, const page_search_shape<page_budget>& shape,
                  tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse, std::span<std::byte> scratch,
                  std::span<unsigned> counters, call_site where = call_site::here()) {
  const device_batch& batch = layer.batch;
  if (batch.tokens == 0) return;
  const page_options& options = shape.budget.options;
  scratch_parts memory{scratch.data() + (256 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 256) % 256};
  const page_call_arrays to(exec, layer.rows, shape, memory);
  require(static_cast<std::int64_t>(scratch.size()) >= memory.used + 256 && static_cast<std::int64_t>(counters.size()) >= to.tickets,
          "attend_pages: scratch is smaller than attend_pages_scratch", where);
  const resident_call<E, T> residents{layer,
                                      q,
                                      to.plain,
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
  page_search_call<E, page_budget> search;
  static_cast<page_search_shape<page_budget>&>(search) = shape;
  search.rows = layer.rows;
  search.members = layer.members;
  search.means = layer.means;
  search.batch = batch;
  search.plain = to.plain;
  search.resident = to.lse;
  search.scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<float>(Page.key_dim));
  search.wide = rows_on_16(layer.rows.key);
  search.to = to.search;
  search_pages(exec, search, where);
  attend_chosen<E, T>(exec, layer.rows, batch, q, to.search.members(), {options.scale, options.soft_cap}, to.states, to.sums, out, lse,
                      {to.attend, static_cast<std::size_t>(to.attend_bytes)}, counters.first(static_cast<std::size_t>(to.tickets)),
                      all_near{}, where);
}

}  // namespace kvx
