#pragma once
// What attention over semantic pages on the device works with: a layer, its budget, and the arrays between its launches.

#include <kvx/attend/cuda/attend_memory.cuh>
#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/pages.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/query_energies.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// One layer as retrieval from semantic pages on the device reads it.
///
/// batch       items under the ids of pages and of their columns, which are the same
/// energies    where queries that are learned from go; null data for nowhere
/// codes       of the keys, read by a reranker that says so
template <class E>
struct device_page_layer {
  row_view<const E> rows;
  column_array members;
  column_array means;
  energy_column energies;
  key_columns codes;
  key_sketch sketch;
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
/// chosen      where a reranker follows
/// plain, rotated   (units, G, D) queries; rotated, and page_dots (units, pages, G) of codes' page means, where codes are read
/// lse, states (units, G) of the residents; sums (units, G, Dv)
struct page_call_arrays {
  page_search_arrays search;
  rerank_output chosen;
  float* plain = nullptr;
  float* rotated = nullptr;
  float* page_dots = nullptr;
  float* lse = nullptr;
  softmax_state* states = nullptr;
  float* sums = nullptr;
  std::byte* attend = nullptr;
  std::int64_t attend_bytes = 0;
  std::int64_t tickets = 0;
  std::int64_t counters = 0;  ///< in all: tickets, then those of the reranker

  template <class E>
  page_call_arrays(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape, bool coded,
                   scratch_parts& memory)
      : search(shape, memory) {
    const std::int64_t units = shape.units(), G = shape.group;
    if (shape.budget.ranks) {
      rerank_shape best;
      best.heads = shape.heads;
      best.group = shape.group;
      best.tokens = shape.tokens;
      best.candidates = search.id_pitch;
      best.keep = shape.budget.options.keep;
      best.whole_below = shape.whole_below;
      chosen = plan_rerank(best, memory);
      counters = chosen.counters_needed();
    }
    plain = memory.take<float>(units * G * rows.key_dim);
    if (coded) {
      rotated = memory.take<float>(units * G * rows.key_dim);
      page_dots = memory.take<float>(units * search.page_pitch * G);
    }
    lse = memory.take<float>(units * G);
    states = memory.take<softmax_state>(units * G);
    sums = memory.take<float>(units * G * rows.value_dim);
    attend_bytes = attend_rows_scratch(exec, rows, shape.tokens, G * shape.heads, most_chosen());
    attend = memory.take<std::byte>(attend_bytes);
    tickets = attend_rows_tickets(exec, rows, shape.tokens, G * shape.heads);
    counters += tickets;
  }

  std::int64_t most_chosen() const { return chosen.chosen_pitch > 0 ? chosen.chosen_pitch : search.id_pitch; }
};

/// What attention over semantic pages is planned for.
///
/// ranks           a reranker keeps the best tokens of the pages found
/// whole_below     sequences that hold fewer committed tokens than this keep their whole zone
inline page_search_shape<page_budget> page_search_of(const dci_shape& index, group_rule rule, page_shape page, const zones& cut, int heads,
                                                     std::int64_t query_heads, std::int64_t tokens, std::int64_t longest,
                                                     const page_options& options, bool ranks, std::int64_t whole_below) {
  page_search_shape<page_budget> s;
  s.index = index;
  s.page_tokens = page.tokens;
  s.cut = cut;
  s.heads = heads;
  s.group = static_cast<int>(query_heads / heads);
  s.tokens = tokens;
  s.longest = longest;
  s.budget = {options, ranks};
  s.how.probes = options.pages.probes;
  s.how.rule = rule;
  s.whole_below = whole_below;
  return s;
}

/// What attend_pages needs for a batch of so many new tokens in sequences of at most `longest` tokens. A pure function.
template <class E>
attend_memory attend_pages_scratch(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape, bool coded) {
  scratch_parts size;
  const page_call_arrays arrays(exec, rows, shape, coded, size);
  return {size.used + 256, arrays.counters};
}

}  // namespace kvx
