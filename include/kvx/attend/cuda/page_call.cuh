#pragma once
// What attention over semantic pages on the device works with: a layer, its budget, and the arrays between its launches.

#include <kvx/attend/cuda/attend_memory.cuh>
#include <kvx/attend/cuda/unit_arrays.cuh>
#include <kvx/attend/pages.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/cuda/page_arrays.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/sketch/value_code.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// One layer as retrieval from semantic pages on the device reads it.
///
/// batch       items under the ids of pages and of their columns
/// rows_of     the same under the frames of their rows, see page_frames; where rows do not move, as batch
/// energies    where queries that are learned from go; null data for nowhere
/// codes       of the keys, read by a reranker or a ranking of pages that says so
/// values      columns of the values, where the reranker has tiers
/// links, promoted   where a tree is searched; places: where it has composite indices
/// kept        selections that are used again
/// mean_codes  of the means, where there are some
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
  device_batch rows_of;
  value_columns values = {};
  column_array links = {};
  promoted_tokens promoted = {};
  kept_pages_of_layer kept = {};
  column_array places = {};
  column_array mean_codes = {};
};

/// What a unit may spend: see wanted_pages.
///
/// others      tiers that take part
struct page_budget {
  page_options options;
  bool ranks = false;
  tier_options others = {.coded = false, .tail = false};

  KVX_HD constexpr std::int64_t wanted(std::int64_t page_tokens, std::int64_t zone_pages) const {
    return options.keep > 0 || others.any() ? wanted_pages(options, page_tokens, ranks, others.coded, zone_pages) : 0;
  }
};
static_assert(page_budget{{.keep = 192}}.wanted(16, 400) == 12 && page_budget{{.keep = 0, .pages = {.pages = 3}}}.wanted(16, 400) == 0 &&
              page_budget{{.keep = 0}, true, {}}.wanted(16, 400) == 40);

/// What one call leaves for its own launches. page_dots: of codes' page means, then of those of semantic pages.
///
/// found       (units, most chosen) addresses, where chosen rows are fetched
struct page_call_arrays : unit_arrays {
  page_search_arrays search;
  const void** found = nullptr;
  std::int64_t search_tickets = 0;  ///< the last of the counters

  template <class E>
  page_call_arrays(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape, bool coded,
                   scratch_parts& memory, bool fetches)
      : search(shape, memory) {
    const std::int64_t units = shape.units(), G = shape.group;
    page_pitch = search.page_pitch;
    if (shape.budget.others.any()) take_tiers(units, G, shape.longest, {shape.page_tokens, rows.key_dim, rows.value_dim}, memory);
    if (shape.budget.ranks) {
      rerank_shape best;
      best.heads = shape.heads;
      best.group = shape.group;
      best.tokens = shape.tokens;
      best.candidates = search.id_pitch;
      best.keep = shape.budget.options.keep;
      best.whole_below = shape.whole_below;
      best.marked = shape.by_page;
      chosen = plan_rerank(best, memory);
      counters += chosen.counters_needed();
    }
    if (coded) page_dots = memory.take<float>(units * page_pitch * G);
    if (fetches) found = memory.take<const void*>(units * most_chosen());
    take_units(exec, rows, shape.tokens, G, coded, most_chosen(), memory);
    search_tickets = shape.tickets();
    counters += search_tickets;
  }

  std::int64_t most_chosen() const { return chosen.chosen_pitch > 0 ? chosen.chosen_pitch : search.id_pitch; }
};

/// What attention over semantic pages is planned for.
///
/// ranks           a reranker keeps the best tokens of the pages found; others: tiers that take part beside these
/// interleave      the heads of a group take turns
/// whole_below     sequences that hold fewer committed tokens than this keep their whole zone
inline page_search_shape<page_budget> page_search_of(const dci_shape& index, group_rule rule, bool interleave, page_shape page,
                                                     const zones& cut, int heads, std::int64_t query_heads, std::int64_t tokens,
                                                     std::int64_t longest, const page_options& options, bool ranks,
                                                     const tier_options& others, std::int64_t whole_below) {
  page_search_shape<page_budget> s;
  s.index = index;
  s.page_tokens = page.tokens;
  s.cut = cut;
  s.heads = heads;
  s.group = static_cast<int>(query_heads / heads);
  s.tokens = tokens;
  s.longest = longest;
  s.budget = {options, ranks, others};
  s.by_page = others.any();
  s.how.beam = options.pages.beam;
  s.how.nearest = options.pages.nearest;
  s.how.probes = options.pages.probes;
  s.how.rule = rule;
  s.how.interleave = interleave;
  s.whole_below = whole_below;
  return s;
}

/// What attend_pages needs for a batch of so many new tokens in sequences of at most `longest` tokens. A pure function.
///
/// fetches     rows may be far
template <class E>
attend_memory attend_pages_scratch(const device& exec, const row_view<E>& rows, const page_search_shape<page_budget>& shape, bool coded,
                                   bool fetches = false) {
  scratch_parts size;
  const page_call_arrays arrays(exec, rows, shape, coded, size, fetches);
  return {size.used + 256, arrays.counters};
}

}  // namespace kvx
