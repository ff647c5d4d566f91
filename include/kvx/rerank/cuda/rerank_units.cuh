#pragma once
// The arrays that reranking on the device reads and leaves, for all units of a step at once.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What reranking is planned for. A unit is a new token and a KV head: unit = token * heads + head.
///
/// heads, group    KV heads; query heads of each
/// tokens          new tokens of a step at most
/// candidates      of a unit at most
/// keep            chosen of a unit at most
/// whole_below     in sequences that hold fewer committed tokens than this all candidates are chosen
/// marked          all candidates get logits and scores, and a mark where they are chosen: those that are not take part by their codes
/// pooled          the heads of a token share heads * keep rows: the best of all their scores. Rankings alone know it
struct rerank_shape {
  int heads = 1;
  int group = 1;
  std::int64_t tokens = 1;
  std::int64_t candidates = 0;
  std::int64_t keep = 256;
  std::int64_t whole_below = 0;
  bool marked = false;
  bool pooled = false;

  KVX_HD constexpr std::int64_t units() const { return tokens * heads; }
  /// Rows that the heads of a token share.
  KVX_HD constexpr std::int64_t budget() const { return keep <= 0 ? 0 : heads * (keep < candidates ? keep : candidates); }
  /// Counters that launches leave 0: of each unit, of the launch, and of each token, whose heads may have one budget.
  KVX_HD constexpr std::int64_t counters_needed() const { return units() * (group + 3) + 1 + tokens; }
};

/// Candidates that one block takes, a thread two of them one after the other: two blocks on a multiprocessor hide each other's start.
inline constexpr int rerank_threads = 256, rerank_candidates = 512;

/// Most scores that the block which chooses keeps in dynamic shared memory: beyond it they go through the device's. With what the kernels
/// declare they fit the 99 KiB that a block may have on every architecture.
inline constexpr std::int64_t most_shared_scores = 21 * 1024;

/// Bytes of dynamic shared memory for so many scores; 0 where there are too many.
KVX_HD constexpr std::size_t shared_score_bytes(std::int64_t scores) {
  return scores <= most_shared_scores ? static_cast<std::size_t>(round_up(scores * 4, 16)) : 0;
}

/// Queries of a step and candidates of its units. Trivially copyable; all pointers are the device's.
///
/// ids, counts   (units, id_pitch) candidates of each unit, ascending tokens; how many (units)
/// plain         (units, G, D) queries as they are; rotated: as the codes want them. Each only where somebody reads it
/// lse           (units, G) log-sum-exp of the resident logits; null: none
/// page_dots     (units, page_pitch, G) dots of the page means with the page queries, entry 0 for page first_page of every sequence; read
///               where the sketch has a centre
/// scale         multiplies q.k; 0 means 1 / sqrt(D)
/// missed        (units): 0 where the candidates are all that the zone has: if these are no more than are kept, they are chosen without a
///               look, even if marks are asked for; null: nobody says
struct rerank_input {
  const std::int32_t* ids = nullptr;
  const std::int32_t* counts = nullptr;
  std::int64_t id_pitch = 0;
  const float* plain = nullptr;
  const float* rotated = nullptr;
  const float* lse = nullptr;
  const float* page_dots = nullptr;
  std::int64_t page_pitch = 0;
  std::int64_t first_page = 0;
  float scale = 0;
  const std::int32_t* missed = nullptr;
};

/// What reranking leaves. Trivially copyable; all pointers are the device's.
///
/// chosen, chosen_counts   (units, chosen_pitch) tokens that are kept, ascending; how many (units)
/// marks       (units, pitch) 1 for candidates that are chosen, 0 for the others; where asked for, else null
/// logits      (units, G, pitch); undefined where all candidates are chosen without a look
/// scores      (units, pitch), where the group's rule looks at all candidates or they do not fit shared memory
/// sums        (units, sum_pitch, G) of exponentials of each block's candidates, in fixed point
/// proposed, proposed_scores   pooled: (units, pool_pitch) the best of each head, ascending places among its candidates, NaN behind them
/// pool        pooled: (tokens, heads pool_pitch) what a token's heads are given, as places of (heads, pool_pitch)
/// counters    of each unit (G + 3): largest order of each head's logits, blocks that are done with logits, with sums, with scores; then
///             one of the launch; then of each token the heads that have proposed. 0 before and after every launch: clear_rerank once
struct rerank_output : rerank_shape {
  std::int32_t* chosen = nullptr;
  std::int32_t* chosen_counts = nullptr;
  std::uint8_t* marks = nullptr;
  float* logits = nullptr;
  float* scores = nullptr;
  std::int64_t* sums = nullptr;
  std::int32_t* proposed = nullptr;
  float* proposed_scores = nullptr;
  std::int32_t* pool = nullptr;
  std::uint32_t* counters = nullptr;
  std::int64_t chosen_pitch = 0;
  std::int64_t pool_pitch = 0;
  std::int64_t pitch = 0;
  std::int64_t sum_pitch = 0;

  KVX_HD constexpr std::int32_t* chosen_of(std::int64_t unit) const { return chosen + unit * chosen_pitch; }
  KVX_HD constexpr float* logits_of(std::int64_t unit) const { return logits + unit * group * pitch; }
  KVX_HD constexpr std::uint32_t* counters_of(std::int64_t unit) const { return counters + unit * (group + 3); }
  KVX_HD constexpr std::uint32_t* started() const { return counters + units() * (group + 3); }
  KVX_HD constexpr std::uint32_t* proposing(std::int64_t token) const { return started() + 1 + token; }
  KVX_HD constexpr std::int64_t* sums_of(std::int64_t unit) const { return sums + unit * sum_pitch * group; }
  /// Dynamic shared memory for the scores that a token's heads propose, 0 where they are read in the device's.
  KVX_HD constexpr std::size_t pool_bytes() const { return pooled ? shared_score_bytes(heads * pool_pitch) : 0; }
};

/// Lays the arrays out in memory of the device, at a multiple of 256 bytes; a null pointer counts the bytes.
inline rerank_output plan_rerank(const rerank_shape& shape, scratch_parts& memory) {
  rerank_output r;
  static_cast<rerank_shape&>(r) = shape;
  const std::int64_t units = shape.units();
  const std::int64_t kept = shape.pooled ? shape.budget() : shape.keep;
  const std::int64_t most = kept > shape.whole_below ? kept : shape.whole_below;
  r.chosen_pitch = round_up(most < shape.candidates ? most : shape.candidates, 32);
  r.pitch = round_up(shape.candidates, 32);
  r.chosen = memory.take<std::int32_t>(units * r.chosen_pitch);
  r.chosen_counts = memory.take<std::int32_t>(units);
  if (shape.marked) r.marks = memory.take<std::uint8_t>(units * r.pitch);
  r.logits = memory.take<float>(units * shape.group * r.pitch);
  r.scores = memory.take<float>(units * r.pitch);
  r.sum_pitch = ceil_div(shape.candidates, rerank_candidates);
  r.sums = memory.take<std::int64_t>(units * r.sum_pitch * shape.group);
  if (shape.pooled) {
    r.pool_pitch = round_up(kept < shape.candidates ? kept : shape.candidates, 32);
    r.proposed = memory.take<std::int32_t>(units * r.pool_pitch);
    r.proposed_scores = memory.take<float>(units * r.pool_pitch);
    r.pool = memory.take<std::int32_t>(units * r.pool_pitch);
  }
  r.counters = memory.take<std::uint32_t>(shape.counters_needed());
  return r;
}

/// Bytes of device memory that plan_rerank lays out.
inline std::int64_t rerank_scratch(const device&, const rerank_shape& shape) {
  scratch_parts memory;
  plan_rerank(shape, memory);
  return memory.used;
}

/// Sets the counters to 0: once, before the first launch that uses them.
inline void clear_rerank(const device& exec, const rerank_output& r) {
  const current_device here(exec.ordinal);
  const auto bytes = static_cast<std::size_t>(r.counters_needed()) * sizeof(std::uint32_t);
  check("cudaMemsetAsync", cudaMemsetAsync(r.counters, 0, bytes, exec.stream));
}

/// What every thread of a block must know of its unit, read by one.
///
/// keep        how many of the unit's candidates are chosen at most
/// pages       page table of the unit's sequence
/// pools       it proposes `keep` candidates, and shares a budget with the token's other heads
/// is_zone     its candidates are all that the zone has
struct rerank_unit {
  std::int64_t count;
  std::int64_t keep;
  const std::int32_t* pages;
  bool pools;
  bool is_zone;

  __device__ __forceinline__ void read(const device_batch& batch, const rerank_input& in, const rerank_shape& shape, std::int64_t unit) {
    const batch_item& item = batch.items[batch.entry_of[unit / shape.heads]];
    count = in.counts[unit];
    pages = item.pages;
    const bool whole = shape.whole_below > 0 && item.length - item.queries < shape.whole_below;
    pools = shape.pooled && !whole;
    keep = pools ? shape.budget() : shape.keep > 0 ? shape.keep : 0;
    if (whole && keep < count) keep = count;
    is_zone = in.missed != nullptr && in.missed[unit] == 0;
  }

  /// Whether the choice is clear without scores.   takes_all: candidates that are kept need no logits
  __device__ __forceinline__ bool is_clear(bool takes_all) const { return count <= 0 || (takes_all && !pools && count <= keep); }
  __device__ __forceinline__ bool keeps_zone() const { return is_zone && !pools && count <= keep; }
};

}  // namespace kvx
