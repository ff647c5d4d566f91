#pragma once
// Attention of a group of queries over chosen rows, on the device: for every new token and KV head of a batch at once.

#include <kvx/attend/cuda/attend_places.cuh>
#include <kvx/attend/cuda/group_tile.cuh>
#include <kvx/attend/cuda/key_places.cuh>
#include <kvx/attend/cuda/partial.cuh>
#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/attend/rows.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/cuda/batch_token.cuh>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/zones.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

inline constexpr int attend_threads = 128;  ///< a block of attention over rows
inline constexpr int group_rows = 16;       ///< query rows of such a block: the rows of a tensor core's product

/// Pairs of 8 components that a warp must hold for values of this width: the two sizes that kernels are compiled for.
inline constexpr int narrow_pairs = 2, wide_pairs = 9;
static_assert(narrow_pairs * 16 * attend_threads / warp_lanes == 128 && wide_pairs * 16 * attend_threads / warp_lanes == 576);

/// Sinks and recent tokens that a retrieving query sees whatever is chosen; within a step all tokens use the edge of the length before.
KVX_HD constexpr key_places resident_places(const zones& z, const batch_item& item, std::int64_t query, std::int64_t page_tokens) {
  const std::int64_t n = item.length - item.queries + query + 1, old_edge = edge(z, item.length - item.queries, page_tokens);
  const std::int64_t end = old_edge < n ? old_edge : n;
  return {{{0, z.sink < end ? z.sink : end}, {end, n}}, nullptr, 0};
}
static_assert(resident_places({.sink = 4, .local = 256}, {nullptr, 1000, 1, 0}, 0, 64).size() == 4 + 1000 - 704);

/// One block attends with the queries of a group to few rows, and leaves their softmax: the sinks and recent tokens of a unit.
///
/// what        a part of a kernel: states and sums become those of the rows at all places, whatever they held
/// shapes      row(g) is the first component of query g < G, `stride` elements from one to the next; states (G), sums (G, pitch);
///             shared: m.bytes of dynamic memory. All threads call; their writes are seen behind the next barrier
/// cost        K and V of the rows once for every 16 queries
/// exactness   as attend_rows, in one piece
template <int Threads, int Pairs, element E, element T, class Row, class Source>
__device__ void attend_in_block(const tile_memory& m, std::byte* shared, const Source& source, const key_places& places, const Row& row,
                                std::int64_t stride, int group, int key_dim, int value_dim, const score_rule& rule, softmax_state* states,
                                float* sums, std::int64_t pitch) {
  using O = typename operand_of<E>::type;
  for (int first = 0; first < group; first += group_rows) {
    const int rows = group - first < group_rows ? group - first : group_rows;
    group_tile<Threads, Pairs, E, query_parts<O, T>> tile;
    __syncthreads();
    stage_queries<Threads, E, query_parts<O, T>>(
        m, shared, [&](int r) { return row(first + r); }, stride, rows, key_dim, rule);
    attend_places<Threads, E>(m, shared, tile, source, places, 0, places.size(), key_dim, value_dim, rule, sees_all{});
    tile.softmax.finish();
    hand_over(
        tile, rows, value_dim,
        [&](int r, int d, float x, float y, float) {
          sums[(first + r) * pitch + d] = x;
          if (d + 1 < value_dim) sums[(first + r) * pitch + d + 1] = y;
        },
        [&](int r, float max, float sum) { states[first + r] = state_of(max, sum); });
  }
}

/// Row sets of the units of a batch in device memory.
///
/// ranges      (units, 2), or null for none
/// ids         counts of -1: the unit takes no part, and nothing of it is written
/// most        ranges and ids of a unit are at most so many rows together
struct unit_row_sets {
  const token_range* ranges = nullptr;
  row_ids ids;
  std::int64_t most = 0;

  __device__ key_places of(std::int64_t unit, std::int64_t count) const {
    key_places places;
    for (int i = 0; i < 2 && ranges != nullptr; ++i) places.ranges[i] = ranges[2 * unit + i];
    places.ids = ids.ids != nullptr ? ids.of(unit) : nullptr;
    places.id_count = count;
    return places;
  }
};

/// Rows of a piece: at least 64, and at most 32 pieces. A pure function of the rows: the launch does not change a result.
KVX_HD constexpr std::int64_t rows_piece(std::int64_t rows) {
  const std::int64_t share = round_up(ceil_div(rows, 32), 32);
  return share > 64 ? share : 64;
}
KVX_HD constexpr int rows_pieces(std::int64_t rows) { return rows > 0 ? static_cast<int>(ceil_div(rows, rows_piece(rows))) : 1; }
/// No set of at most so many rows has more pieces.
KVX_HD constexpr int most_rows_pieces(std::int64_t rows) { return rows < 32 * 64 ? rows_pieces(rows) : 32; }
static_assert(rows_pieces(512) == 8 && rows_pieces(2049) == 22 && most_rows_pieces(2049) == 32 && rows_pieces(0) == 1);

/// Arrays that the blocks of attend_rows share.
struct rows_scratch {
  partial_results partial;
  int pieces = 1;  ///< slots of a unit's 16 rows

  rows_scratch(scratch_parts& parts, std::int64_t units, std::int64_t group, std::int64_t most, int value_dim) {
    pieces = most_rows_pieces(most);
    partial.rows = static_cast<int>(group < group_rows ? group : group_rows);
    partial.pitch = static_cast<int>(round_up(value_dim, 4));
    const std::int64_t slots = units * ceil_div(group, group_rows) * pieces;
    partial.states = parts.take<float2>(slots * partial.rows);
    partial.sums = parts.take<float>(slots * partial.rows * partial.pitch);
  }
};

/// What a call of attend_rows works with. `out` null: states and sums are taken on; else they are read, and out and lse written.
template <class E, class T, class Far>
struct rows_call {
  row_view<const E> rows;
  Far far;
  device_batch batch;
  tensor_view<const T, 3> q;                                                             // (N, Q, D)
  unit_row_sets sets;
  score_rule rule;
  softmax_state* states = nullptr;                                                       // (units, G)
  float* sums = nullptr;                                                                 // (units, G, Dv)
  tensor_view<T, 3> out;                                                                 // (N, Q, Dv)
  tensor_view<float, 2> lse;                                                             // (N, Q)
  partial_results partial;
  unsigned* tickets = nullptr;                                                           // (units, tiles of G)
  int pieces = 1;
  int group = 1;
  tile_memory memory;
};

template <int Threads, int Pairs, class E, class T, class Far>
__global__ void __launch_bounds__(Threads, Pairs <= narrow_pairs ? 4 : 2) attend_rows_kernel(rows_call<E, T, Far> call) {
  using O = typename operand_of<E>::type;
  std::byte* const shared = dynamic_shared<std::byte>();
  __shared__ int count_of_block;
  const int tiles = (call.group + group_rows - 1) / group_rows;
  const std::int64_t slot = blockIdx.x, unit_tile = slot / call.pieces, unit = unit_tile / tiles, head = unit % call.rows.heads;
  const int piece = static_cast<int>(slot % call.pieces), first = static_cast<int>(unit_tile % tiles) * group_rows;
  if (threadIdx.x == 0) count_of_block = call.sets.ids.counts != nullptr ? call.sets.ids.counts[unit] : 0;
  const batch_token token = token_of_block(call.batch, unit / call.rows.heads);
  if (token.query < 0 || count_of_block < 0) return;
  const key_places places = call.sets.of(unit, count_of_block);
  const std::int64_t n = places.size(), each = rows_piece(n), row_of_q = unit / call.rows.heads;
  const int pieces = rows_pieces(n), D = call.rows.key_dim, Dv = call.rows.value_dim;
  if (piece >= pieces) return;
  const int rows = call.group - first < group_rows ? call.group - first : group_rows;

  group_tile<Threads, Pairs, E, query_parts<O, T>> tile;
  stage_queries<Threads, E, query_parts<O, T>>(
      call.memory, shared, [&](int r) { return call.q.at(row_of_q, head * call.group + first + r, 0); }, call.q.strides[2], rows, D,
      call.rule);
  const auto source = source_of(call.far, call.rows, token.item.pages, head, unit);
  const std::int64_t begin = piece * each, end = begin + each < n ? begin + each : n;
  attend_places<Threads, E>(call.memory, shared, tile, source, places, begin, end, D, Dv, call.rule, sees_all{});
  tile.softmax.finish();
  leave_partial(tile, rows, Dv, call.partial, slot);
  if (!arrives_last(call.tickets + unit_tile, static_cast<unsigned>(pieces))) return;

  const std::int64_t at = unit * call.group + first;
  softmax_state* const states = call.states != nullptr ? call.states + at : nullptr;
  float* const sums = call.sums != nullptr ? call.sums + at * Dv : nullptr;
  const earlier_part earlier{states, sums, Dv};
  if (call.out.data == nullptr) {
    merge_partials<Threads>(
        shared, call.partial, slot - piece, pieces, rows, Dv, earlier, [&](int r, int d, float x, float) { sums[r * Dv + d] = x; },
        [&](int r, float max, float sum) { states[r] = state_of(max, sum); });
  } else {
    const std::int64_t query_head = head * call.group + first;
    merge_partials<Threads>(
        shared, call.partial, slot - piece, pieces, rows, Dv, earlier,
        [&](int r, int d, float x, float sum) { *call.out.at(row_of_q, query_head + r, d) = round_to<T>(sum != 0 ? x / sum : 0.0f); },
        [&](int r, float max, float sum) {
          if (call.lse.data != nullptr) *call.lse.at(row_of_q, query_head + r) = state_of(max, sum).lse();
        });
  }
}

/// Bytes of scratch that attend_rows and attend_chosen need for a batch of so many new tokens, and sets of at most `most` rows.
template <class E>
std::int64_t attend_rows_scratch(const device&, const row_view<E>& rows, std::int64_t tokens, std::int64_t query_heads, std::int64_t most) {
  scratch_parts parts;
  rows_scratch(parts, tokens * rows.heads, query_heads / rows.heads, most, rows.value_dim);
  return parts.used + 64;
}

/// Tickets that they need: zeros before the first call, left as zeros by every call.
template <class E>
std::int64_t attend_rows_tickets(const device&, const row_view<E>& rows, std::int64_t tokens, std::int64_t query_heads) {
  return tokens * rows.heads * ceil_div(query_heads / rows.heads, group_rows);
}

/// Launches the kernel that fits.
template <element E, element T, class Far>
void launch_attend_rows(const device& exec, rows_call<E, T, Far> call, const row_options& options, std::span<std::byte> scratch,
                        std::span<unsigned> tickets, const char* name, call_site where) {
  const row_view<const E>& rows = call.rows;
  const std::int64_t Q = call.q.extents[1], D = rows.key_dim, Dv = rows.value_dim, units = call.batch.tokens * rows.heads;
  require_range("attend_rows: key_dim", D, 1, 576, where);
  require_range("attend_rows: value_dim", Dv, 1, 576, where);
  require(rows.heads > 0 && Q % rows.heads == 0, "attend_rows: the query heads must be a multiple of the KV heads", where);
  require_shape("attend_rows: q", call.q, {call.batch.tokens, Q, D}, where);
  require(static_cast<std::int64_t>(scratch.size()) >= attend_rows_scratch(exec, rows, call.batch.tokens, Q, call.sets.most), name, where);
  require(static_cast<std::int64_t>(tickets.size()) >= attend_rows_tickets(exec, rows, call.batch.tokens, Q),
          "attend_rows: tickets are fewer than attend_rows_tickets", where);
  call.group = static_cast<int>(Q / rows.heads);
  scratch_parts parts{scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64};
  const rows_scratch arrays(parts, units, call.group, call.sets.most, rows.value_dim);
  call.partial = arrays.partial;
  call.pieces = arrays.pieces;
  call.tickets = tickets.data();
  call.rule = rule_of(options.scale, options.soft_cap, rows.key_dim);
  call.memory = tile_memory_of<E, T>(group_rows, rows.key_dim, rows.value_dim);
  const std::int64_t blocks = units * ceil_div(call.group, group_rows) * call.pieces;
  const launch_shape shape{dim3(static_cast<unsigned>(blocks)), attend_threads, merged_bytes(call.memory, group_rows)};
  if (Dv <= 128) {
    launch(exec, shape, attend_rows_kernel<attend_threads, narrow_pairs, E, T, Far>, call);
  } else {
    launch(exec, shape, attend_rows_kernel<attend_threads, wide_pairs, E, T, Far>, call);
  }
}

/// Takes rows into the partial attention of every unit: a new token of the batch and a KV head, unit = token * H + head.
///
/// what        states and sums become those of the rows that they stood for and of the sets'; begin with softmax_state{} and any sums
/// shapes      q (N, Q, D), Q = H G; states (units, G); sums (units, G, Dv), undivided; all in device memory
/// units       scores in nats
/// cost        one launch; K and V of a set once for every 16 heads of a group, split over blocks
/// exactness   queries to 2^-22, weights to 2^-17 of the largest, sums in float: 2e-5 where scores are some nats and values below 5. Float
///             sums in an order that depends on a set's size alone; the same bits on every run. Rows outside of the sets are never read
/// errors      usage_error for shapes that do not fit; tokens and counts are not checked; NaN scores give NaN, a score of -inf is no row,
///             infinite values give infinities or NaN
/// source      Milakov and Gimelshein 2018; the split over keys is FlashDecoding's
template <element E, element T>
void attend_rows(const device& exec, const row_view<const E>& rows, const device_batch& batch, tensor_view<const T, 3> q,
                 const unit_row_sets& sets, const row_options& options, softmax_state* states, float* sums, std::span<std::byte> scratch,
                 std::span<unsigned> tickets, call_site where = call_site::here()) {
  require(batch.tokens == 0 || (states != nullptr && sums != nullptr), "attend_rows: states and sums are null", where);
  rows_call<E, T, all_near> call;
  call.rows = rows;
  call.batch = batch;
  call.q = q;
  call.sets = sets;
  call.states = states;
  call.sums = sums;
  launch_attend_rows(exec, call, options, scratch, tickets, "attend_rows: scratch is smaller than attend_rows_scratch", where);
}

/// Attends to the chosen rows of every unit, brings them together with what the unit has attended to before, and finishes.
///
/// what        attend_rows and finish_rows in one launch; units of count -1 are left alone
/// shapes      ids as row_ids; states (units, G) and sums (units, G, Dv) of the residents, which stay as they are, or null for none;
///             out (N, Q, Dv), lse (N, Q) or a null view; far: where rows lie that are not near, anything with a `source_of`
/// errors      as attend_rows; a head that saw no row: out 0, lse -inf
template <element E, element T, class Far = all_near>
void attend_chosen(const device& exec, const row_view<const E>& rows, const device_batch& batch, tensor_view<const T, 3> q,
                   const row_ids& ids, const row_options& options, const softmax_state* states, const float* sums, tensor_view<T, 3> out,
                   tensor_view<float, 2> lse, std::span<std::byte> scratch, std::span<unsigned> tickets, const Far& far = {},
                   call_site where = call_site::here()) {
  require_shape("attend_chosen: out", out, {batch.tokens, q.extents[1], rows.value_dim}, where);
  if (lse.data != nullptr) require_shape("attend_chosen: lse", lse, {batch.tokens, q.extents[1]}, where);
  rows_call<E, T, Far> call;
  call.rows = rows;
  call.far = far;
  call.batch = batch;
  call.q = q;
  call.sets = {nullptr, ids, ids.most};
  call.states = const_cast<softmax_state*>(states);  // read alone, since there is an output
  call.sums = const_cast<float*>(sums);
  call.out = out;
  call.lse = lse;
  launch_attend_rows(exec, call, options, scratch, tickets, "attend_chosen: scratch is smaller than attend_rows_scratch", where);
}

template <int Threads, class T>
__global__ void __launch_bounds__(Threads)
    finish_rows_kernel(const softmax_state* states, const float* sums, tensor_view<T, 2> out, std::int64_t value_dim) {
  const std::int64_t row = blockIdx.x;
  __shared__ float sum_of_row;
  if (threadIdx.x == 0) sum_of_row = states[row].sum;
  __syncthreads();
  const float sum = sum_of_row;
  for (std::int64_t d = threadIdx.x; d < value_dim; d += Threads)
    *out.at(row, d) = round_to<T>(sum != 0 ? sums[row * value_dim + d] / sum : 0.0f);
}

/// Divides a partial attention: the output of a whole one.
///
/// shapes      states (R), sums (R, Dv), out (R, Dv)
/// errors      a row that saw no key: out 0
template <element T>
void finish_rows(const device& exec, const softmax_state* states, const float* sums, tensor_view<T, 2> out) {
  launch(exec, {dim3(static_cast<unsigned>(out.extents[0])), attend_threads}, finish_rows_kernel<attend_threads, T>, states, sums, out,
         out.extents[1]);
}

}  // namespace kvx
