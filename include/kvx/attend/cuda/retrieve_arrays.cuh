#pragma once
// The arrays between the launches of attention over what retrieval finds, for all units at once.

#include <kvx/attend/cuda/attend_memory.cuh>
#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/cuda/unit_arrays.cuh>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/key_sketch.hpp>
#include <kvx/sketch/value_code.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace kvx {

/// One layer as retrieval on the device reads it.
///
/// sketch      how the keys are coded
/// rows_of     the batch under the page ids of the rows; columns_of under those of the columns
/// balances    (entries) diagonals, in device memory, those of this layer (H, D) begin at `learned_at`; a null entry or pointer for none
/// samples     (tokens) where the squares of the token's queries go, (H, D) of this layer begin at `learned_at`; as balances
/// values      columns of the values, where the reranker has tiers
template <class E>
struct device_retrieve_layer {
  row_view<const E> rows;
  key_columns columns;
  key_sketch sketch;
  kvx::zones zones;
  device_batch rows_of;
  device_batch columns_of;
  const float* const* balances = nullptr;
  bf16* const* samples = nullptr;
  std::int64_t learned_at = 0;
  value_columns values = {};
};

/// Refuses the budget whose rule adds scores in ascending order, which is the host's alone.
inline void require_device_budget(const retrieve_budget& budget, call_site where) {
  require(budget.of != retrieve_budget::kind::mass,
          "attend: a budget by mass is the host's; on the device keep counts rows, of a KV head or of a layer's heads together", where);
}

/// What one call leaves for its own launches.
///
/// members          where the search is tiered
/// page_dots        those of the search, where it leaves some
/// found            (units, most chosen) addresses, where chosen rows are fetched
struct retrieve_arrays : unit_arrays {
  bucket_search search;
  tier_members members;
  const void** found = nullptr;
  std::int64_t member_counters = 0;

  template <class E>
  retrieve_arrays(const device& exec, const row_view<E>& rows, const bucket_search_shape& shape, const retrieve_budget& budget,
                  scratch_parts& memory, bool fetches) {
    const std::int64_t units = shape.units(), G = shape.group;
    search = plan_search(shape, memory);
    page_pitch = search.page_pitch;
    if (shape.tiered) {
      members = plan_members(search, memory);
      take_tiers(units, G, shape.longest, shape.page, memory);
      member_counters = tier_members::counters_needed(shape);
    }
    if (shape.ranked) {
      const std::int64_t candidates = shape.tiered ? members.id_pitch : shape.most_wanted();
      const bool pooled = budget.of == retrieve_budget::kind::layer && shape.heads > 1;
      chosen =
          plan_rerank({shape.heads, shape.group, shape.tokens, candidates, shape.keep, shape.whole_below, shape.tiered, pooled}, memory);
      counters += chosen.counters_needed();
      page_dots = search.page_dots;
      if (shape.sketch.centre && !leaves_page_dots(shape.sketch, shape.by)) page_dots = memory.take<float>(units * search.page_pitch * G);
    }
    take_units(exec, rows, shape.tokens, G, true, most_chosen(), memory);
    if (fetches) found = memory.take<const void*>(units * most_chosen());
    counters += member_counters;
  }

  std::int64_t most_chosen() const { return search.ranked ? chosen.chosen_pitch : search.id_pitch; }
};

/// What retrieval is planned for.
///
/// whole_below      sequences that hold fewer committed tokens than this keep their whole zone: where launches are made before lengths are
///                  known, short sequences attend to everything this way
template <class Reranker>
bucket_search_shape retrieve_shape(const key_sketch& sketch, const bucket_scoring& by, const zones& cut, page_shape page, int heads,
                                   std::int64_t query_heads, std::int64_t tokens, std::int64_t longest, const retrieve_options& options,
                                   std::int64_t whole_below) {
  bucket_search_shape s;
  s.sketch = sketch;
  s.by = by;
  s.page = page;
  s.cut = cut;
  s.heads = heads;
  s.group = static_cast<int>(query_heads / heads);
  s.tokens = tokens;
  s.longest = longest;
  s.keep = options.keep;
  s.breadth = options.breadth;
  s.ranked = !std::is_same_v<Reranker, pass_through>;
  s.tiered = tiers_used(tiers_of<Reranker>(), options.others).any();
  s.whole_below = whole_below;
  return s;
}

/// What attend_retrieved needs for a batch of so many new tokens in sequences of at most `longest` tokens. A pure function.
template <class Reranker, class E>
attend_memory attend_retrieved_scratch(const device& exec, const key_sketch& sketch, const bucket_scoring& by, const zones& cut,
                                       page_shape page, const row_view<E>& rows, std::int64_t query_heads, std::int64_t tokens,
                                       std::int64_t longest, const retrieve_options& options, std::int64_t whole_below,
                                       bool fetches = false) {
  scratch_parts size;
  const retrieve_arrays arrays(
      exec, rows, retrieve_shape<Reranker>(sketch, by, cut, page, rows.heads, query_heads, tokens, longest, options, whole_below),
      options.budget, size, fetches);
  return {size.used + 256, arrays.counters};
}

}  // namespace kvx
