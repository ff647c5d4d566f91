#pragma once
// The arrays between the launches of attention over what an index finds that do not depend on the index, for all units at once.

#include <kvx/attend/cuda/rows.cuh>
#include <kvx/attend/cuda/tiers.cuh>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/device.cuh>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/rerank/cuda/rerank_units.cuh>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What one call leaves for its own launches; a unit is a new token and a KV head.
///
/// chosen      where a reranker follows
/// tiers       where tokens take part that are not chosen
/// plain, rotated   (units, G, D) queries; rotated where codes are read
/// page_dots   (units, page_pitch, G) where codes are read that have a centre
/// lse, states (units, G) of the residents; sums (units, G, Dv)
/// attend      of attend_chosen
/// counters    in all: tickets of attend_chosen and of attend_tiers, then those of whoever else needs some
struct unit_arrays {
  rerank_output chosen;
  tier_scratch tiers;
  float* plain = nullptr;
  float* rotated = nullptr;
  float* page_dots = nullptr;
  float* lse = nullptr;
  softmax_state* states = nullptr;
  float* sums = nullptr;
  std::byte* attend = nullptr;
  std::int64_t page_pitch = 0;
  std::int64_t attend_bytes = 0;
  std::int64_t tickets = 0;
  std::int64_t tier_tickets = 0;
  std::int64_t counters = 0;

  /// Queries, residents and what attend_chosen needs, for at most `most_chosen` rows of a unit.
  template <class E>
  void take_units(const device& exec, const row_view<E>& rows, std::int64_t tokens, std::int64_t group, bool rotates,
                  std::int64_t most_chosen, scratch_parts& memory) {
    const std::int64_t heads = group * rows.heads, queries = tokens * heads;
    plain = memory.take<float>(queries * rows.key_dim);
    if (rotates) rotated = memory.take<float>(queries * rows.key_dim);
    lse = memory.take<float>(queries);
    states = memory.take<softmax_state>(queries);
    sums = memory.take<float>(queries * rows.value_dim);
    attend_bytes = attend_rows_scratch(exec, rows, tokens, heads, most_chosen);
    attend = memory.take<std::byte>(attend_bytes);
    tickets = attend_rows_tickets(exec, rows, tokens, heads);
    counters += tickets;
  }

  /// What attend_tiers needs in sequences of at most `longest` tokens.
  void take_tiers(std::int64_t units, std::int64_t group, std::int64_t longest, page_shape page, scratch_parts& memory) {
    tiers = tier_scratch(memory, units, group, longest, page);
    tier_tickets = attend_tiers_tickets(units, group);
    counters += tier_tickets;
  }

  /// What a reranker of these candidates is told.
  rerank_input ranked_among(const row_ids& candidates, const zones& cut, std::int64_t page_tokens, float scale) const {
    return {.ids = candidates.ids,
            .counts = candidates.counts,
            .id_pitch = candidates.pitch,
            .plain = plain,
            .rotated = rotated,
            .lse = lse,
            .page_dots = page_dots,
            .page_pitch = page_pitch,
            .first_page = cut.sink / page_tokens,
            .scale = scale};
  }
};

}  // namespace kvx
