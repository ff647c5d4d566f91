#pragma once
// How dense attention on the host is cut into units of work, and where each unit leaves its results.

#include <kvx/attend/dense.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/table.hpp>
#include <kvx/core/bits.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx::host_dense {

/// Rows of a tile: a multiple of every panel width (48, 24, 12), and few enough for queries and sums to stay in the L2 cache.
inline constexpr std::int64_t panel_rows = 192;

/// With fewer rows than this, converting and transposing for panels does not pay.
inline constexpr std::int64_t fewest_panel_rows = 24;

/// Units of an item that keep many threads busy; beyond it keys are not split further.
inline constexpr std::int64_t units_wanted = 64;

/// How one item is cut. A pure function of the item and the heads: neither threads nor the rest of the batch change a result.
///
/// rows        query rows a KV head: queries * G, row r is query r / G, head r % G of the group
/// tile        rows of a unit; few rows are one tile, computed row by row; many are computed in panels
/// piece       keys of a unit, a multiple of 64
struct dense_cut {
  bool panels = false;
  std::int64_t rows = 0;
  std::int64_t tile = 0;
  std::int64_t tiles = 0;
  std::int64_t piece = 0;
  std::int64_t pieces = 0;
};

constexpr dense_cut cut_of(const attend_item& item, std::int64_t heads, std::int64_t group) {
  dense_cut c;
  c.rows = item.queries * group;
  c.panels = c.rows >= fewest_panel_rows;
  c.tile = c.panels ? panel_rows : c.rows;
  c.tiles = c.rows > 0 ? ceil_div(c.rows, c.tile) : 0;
  // Few rows are bound by memory: pieces of 512 keys, at most 128. Panels are bound by arithmetic: pieces only where tiles are few.
  const std::int64_t most = c.panels ? ceil_div(units_wanted, std::max<std::int64_t>(c.tiles * heads, 1)) : 128;
  c.piece = std::max<std::int64_t>(512, round_up(ceil_div(std::max<std::int64_t>(item.length, 1), most), simd::block_tokens));
  c.pieces = ceil_div(std::max<std::int64_t>(item.length, 1), c.piece);
  return c;
}
static_assert(cut_of({.length = 131072, .queries = 1}, 8, 4).pieces == 128 && cut_of({.length = 4096, .queries = 4096}, 8, 4).pieces == 1);

struct key_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Keys that a query at `position` sees, as two ranges: zone 0 the sink (only with a window), zone 1 the others.
constexpr key_range visible(const dense_options& o, std::int64_t position, int zone) {
  if (zone == 0) return {0, o.window > 0 ? std::clamp<std::int64_t>(o.sink, 0, std::max<std::int64_t>(position + 1, 0)) : 0};
  return {o.window > 0 ? std::max(window_start(o, position), o.sink) : 0, position + 1};
}

/// One item of a batch with its place among the units and in scratch.
///
/// skip        pieces [skip, skip + skipped) hold no visible key and are no units
/// sums        (H, rows, pieces, pitch) undivided outputs and states (H, rows, pieces) of units, where there are several pieces
/// open        (H, tiles) units that are not done yet; whoever finishes the last one merges
struct dense_job {
  attend_item item;
  dense_cut cut;
  std::int64_t first_unit = 0;
  std::int64_t pieces = 0;
  std::int64_t skip = 0;
  std::int64_t skipped = 0;
  float* sums = nullptr;
  softmax_state* states = nullptr;
  std::atomic<int>* open = nullptr;
};

/// Pieces of the item that hold a key some query sees.
constexpr void skip_masked_pieces(dense_job& job, const dense_options& o) {
  const std::int64_t sink_end = visible(o, job.item.length - 1, 0).end;
  const std::int64_t window = visible(o, job.item.length - job.item.queries, 1).begin;
  job.skip = std::min(ceil_div(sink_end, job.cut.piece), job.cut.pieces);
  job.skipped = std::max<std::int64_t>(std::min(window / job.cut.piece, job.cut.pieces - 1) - job.skip, 0);
  job.pieces = job.cut.pieces - job.skipped;
}

/// What a batch takes, in units of each array; `add` per item.
struct dense_sizes {
  std::int64_t units = 0;
  std::int64_t sums = 0;
  std::int64_t states = 0;
  std::int64_t open = 0;
  std::int64_t few_rows = 0;  // most rows of an item that is computed row by row
  bool panels = false;

  constexpr void add(const dense_cut& c, std::int64_t pieces, std::int64_t heads, std::int64_t value_pitch) {
    units += heads * c.tiles * pieces;
    open += heads * c.tiles;
    if (pieces > 1) {
      sums += heads * c.rows * pieces * value_pitch;
      states += heads * c.rows * pieces;
    }
    if (c.panels) {
      panels = true;
    } else {
      few_rows = std::max(few_rows, c.rows);
    }
  }
};

constexpr std::int64_t float_pitch(std::int64_t dim) { return round_up(dim, simd::padding); }

/// Floats of a worker's own scratch while it computes few rows: queries, sums, scores, and max, sum, factor of a row.
constexpr std::int64_t few_floats(std::int64_t rows, std::int64_t key_dim, std::int64_t value_dim) {
  return rows * (float_pitch(key_dim) + float_pitch(value_dim) + simd::block_tokens) + 3 * round_up(rows, simd::padding);
}

/// Keys and scores of a block in panels, with room for a last step of eight keys that starts anywhere.
inline constexpr std::int64_t panel_block = simd::block_tokens + simd::column_step;

/// Floats of a worker's own scratch while it computes a tile: queries, sums, keys, values, scores, and five floats a row.
constexpr std::int64_t panel_floats(std::int64_t key_dim, std::int64_t value_dim) {
  return panel_rows * (key_dim + round_up(value_dim, simd::column_step)) +
         panel_block * (simd::key_pitch(key_dim) + float_pitch(value_dim)) + panel_block * simd::padding * 2 + 5 * panel_rows;
}

/// Tasks that share the units: as many as threads may run, where `exec` leaves that open as many as the machine has.
inline std::int64_t workers_of(const host& exec, std::int64_t units) { return std::min<std::int64_t>(units, worker_count(exec)); }

/// Hands out arrays of scratch one after the other, each on a cache line of its own.
struct arena {
  std::byte* at;

  template <class U>
  U* take(std::int64_t count) {
    U* const p = reinterpret_cast<U*>(at);
    at += round_up(count * static_cast<std::int64_t>(sizeof(U)), 64);
    return p;
  }
};

/// Floats of one worker's slot.
constexpr std::int64_t slot_floats(const dense_sizes& s, std::int64_t key_dim, std::int64_t value_dim) {
  const std::int64_t few = few_floats(s.few_rows, key_dim, value_dim);
  return round_up(s.panels ? std::max(few, panel_floats(key_dim, value_dim)) : few, 16);
}

/// Bytes of scratch for a batch of these sizes, alignment of its start included.
inline std::int64_t scratch_bytes(const host& exec, const dense_sizes& s, std::int64_t items, std::int64_t key_dim,
                                  std::int64_t value_dim) {
  const auto line = [](std::int64_t bytes) { return round_up(bytes, 64); };
  return 64 + line(items * static_cast<std::int64_t>(sizeof(dense_job))) +
         line(s.open * static_cast<std::int64_t>(sizeof(std::atomic<int>))) +
         line(s.states * static_cast<std::int64_t>(sizeof(softmax_state))) + line(s.sums * static_cast<std::int64_t>(sizeof(float))) +
         line(workers_of(exec, s.units) * slot_floats(s, key_dim, value_dim) * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace kvx::host_dense
