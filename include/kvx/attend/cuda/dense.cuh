#pragma once
// Dense attention of a ragged batch on the device: decoding and prompts.

#include <kvx/attend/cuda/attend_places.cuh>
#include <kvx/attend/cuda/dense_cut.cuh>
#include <kvx/attend/cuda/group_tile.cuh>
#include <kvx/attend/cuda/partial.cuh>
#include <kvx/attend/cuda/prompt_tile.cuh>
#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/cuda/tile_memory.cuh>
#include <kvx/attend/dense.hpp>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/ticket.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

inline constexpr int dense_threads = 128;  ///< a block of dense attention

/// What a launch of attend_dense works with.
///
/// blocks      of an entry: (tiles, H, pieces), piece fastest; those beyond what an item has return at once
/// slots, tickets_each   of an entry
template <class E, class T, class Far>
struct dense_launch {
  row_view<const E> rows;
  Far far;
  device_batch batch;
  tensor_view<const T, 3> q;                                                             // (N, Q, D)
  tensor_view<T, 3> out;                                                                 // (N, Q, Dv)
  tensor_view<float, 2> lse;                                                             // (N, Q)
  dense_options options;
  score_rule rule;
  partial_results partial;
  unsigned* tickets = nullptr;
  std::int64_t blocks = 0;
  std::int64_t slots = 0;
  std::int64_t tickets_each = 0;
  int group = 1;
  bool prompts = false;
  tile_memory memory;
};

/// Which block of a launch this is, and which query rows it has. Waits in shared memory where the loop over keys has few registers.
///
/// query, first, rows   the item's first query, and of the item's query rows of a KV head the first of the block, and how many
struct dense_block {
  std::int64_t entry, block, tile_index, head, query, first;
  int rows, piece, pieces;
};

template <int Threads, class Tile, class E, class T, class Far>
__global__ void __launch_bounds__(Threads, Tile::blocks) attend_dense_kernel(dense_launch<E, T, Far> call) {
  std::byte* const shared = dynamic_shared<std::byte>();
  constexpr bool waits = Tile::blocks > 2;
  __shared__ attend_item item_of_block;
  __shared__ dense_block waiting;
  const std::int64_t entry = blockIdx.x / call.blocks, block = blockIdx.x % call.blocks, H = call.rows.heads;
  if (threadIdx.x == 0) item_of_block = call.batch.items[entry];
  __syncthreads();
  const attend_item item = item_of_block;
  const device_cut cut = cut_of(item, call.options, H, call.group, call.prompts);
  if (cut.tile != call.memory.rows || block >= cut.tiles * H * cut.pieces) return;
  const std::int64_t head = block / cut.pieces % H;
  const std::int64_t tile_index = cut.tiles - 1 - block / cut.pieces / H;  // those that see most first: the last to finish are short
  const int piece = static_cast<int>(block % cut.pieces), D = call.rows.key_dim, Dv = call.rows.value_dim;

  row_mask mask;
  mask.options = call.options;
  mask.group = call.group;
  mask.first = tile_index * cut.tile;
  mask.position = item.length - item.queries;
  const int rows = static_cast<int>(cut.rows - mask.first < cut.tile ? cut.rows - mask.first : cut.tile);
  mask.last = mask.position + (mask.first + rows - 1) / call.group;
  mask.places = seen_places(call.options, mask.position + mask.first / call.group, mask.last);
  const std::int64_t n = mask.places.size();
  const int pieces = n > 0 ? static_cast<int>(ceil_div(n, cut.piece)) : 1;
  if (piece >= pieces) return;

  dense_block at{entry, block, tile_index, head, item.first, mask.first, rows, piece, pieces};
  if (waits && threadIdx.x == 0) waiting = at;
  const auto query_head = [&](int r) { return at.head * call.group + (at.first + r) % call.group; };
  const auto query_row = [&](int r) { return at.query + (at.first + r) / call.group; };
  Tile tile;
  stage_queries<Threads, E, Tile::query_parts>(
      call.memory, shared, [&](int r) { return call.q.at(query_row(r), query_head(r), 0); }, call.q.strides[2], rows, D, call.rule);
  const auto source = source_of(call.far, call.rows, item.pages, head, 0);
  const std::int64_t begin = piece * cut.piece, end = begin + cut.piece < n ? begin + cut.piece : n;
  attend_places<Threads, E>(call.memory, shared, tile, source, mask.places, begin, end, D, Dv, call.rule, mask);
  tile.softmax.finish();
  if (waits) at = waiting;  // behind the barrier at the end of attend_places

  const auto write = [&](int r, int d, float x, float sum) {
    *call.out.at(query_row(r), query_head(r), d) = round_to<T>(sum != 0 ? x / sum : 0.0f);
  };
  const auto state = [&](int r, float max, float sum) {
    if (call.lse.data != nullptr) *call.lse.at(query_row(r), query_head(r)) = state_of(max, sum).lse();
  };
  if (at.pieces == 1) {
    hand_over(
        tile, at.rows, Dv,
        [&](int r, int d, float x, float y, float sum) {
          write(r, d, x, sum);
          if (d + 1 < Dv) write(r, d + 1, y, sum);
        },
        state);
    return;
  }
  const std::int64_t slot = at.entry * call.slots + at.block;
  leave_partial(tile, at.rows, Dv, call.partial, slot);
  unsigned* const ticket = call.tickets + at.entry * call.tickets_each + at.tile_index * H + at.head;
  if (!arrives_last(ticket, static_cast<unsigned>(at.pieces))) return;
  merge_partials<Threads>(shared, call.partial, slot - at.piece, at.pieces, at.rows, Dv, earlier_part{}, write, state);
}

/// Arrays and sizes of the two kinds of launches, which follow each other and share the memory.
template <class E>
struct dense_arrays {
  std::int64_t blocks[2] = {}, slots[2] = {}, tickets[2] = {};  // few rows, prompts
  partial_results partial[2];

  dense_arrays(std::byte* data, std::int64_t& bytes, const device_batch& batch, std::int64_t heads, std::int64_t group, int value_dim,
               bool prompts) {
    for (int kind = 0; kind < 2; ++kind) {
      const bool prompt = kind == 1;
      if (prompt && !prompts) continue;
      std::int64_t most = batch.most_queries * group;
      if (prompt && most <= few_rows) continue;
      if (!prompt && prompts && most > few_rows) most = few_rows;
      const int tile = prompt ? prompt_rows : few_rows;
      blocks[kind] = heads * most_blocks(prompt, most, batch.longest, heads);
      slots[kind] = most_slots(prompt, most, batch.longest, heads);
      tickets[kind] = heads * ceil_div(most, tile);
      partial[kind].rows = static_cast<int>(most < tile ? most : tile);
      partial[kind].pitch = static_cast<int>(round_up(value_dim, 4));
      scratch_parts parts{data};
      const std::int64_t rows = batch.entries * slots[kind] * partial[kind].rows;
      partial[kind].states = parts.take<float2>(rows);
      partial[kind].sums = parts.take<float>(rows * partial[kind].pitch);
      bytes = parts.used > bytes ? parts.used : bytes;
    }
  }
};

/// Pairs of 8 components in the sums of a prompt's row at most.
template <element E, element T>
inline constexpr int widest_prompt_pairs = operand_of<E>::parts > 1 || prompt_query_parts<E, T> > 1 ? 8 : 16;

/// Whether many rows go together for these types and dims: else prompts are attended to like few rows, 16 at a time.
///
/// what        sums of more than 256 components are too many for the registers of a warp, and beside operands of several parts those of 128
template <element E, element T>
constexpr bool has_prompt_tiles(int key_dim, int value_dim) {
  return value_dim <= (widest_prompt_pairs<E, T> * 16) && prompt_memory_of<E, T>(prompt_rows, key_dim, value_dim).keys != 0;
}

/// Bytes of scratch that attend_dense needs for a batch of these maxima, whatever its options and the element of q.
template <class E>
std::int64_t attend_dense_scratch(const device&, const row_view<E>& rows, const device_batch& batch, std::int64_t query_heads) {
  std::int64_t bytes = 0;
  for (const bool prompts : {false, true}) {
    if (prompts && rows.value_dim > 256) continue;
    dense_arrays<E>(nullptr, bytes, batch, rows.heads, query_heads / rows.heads, rows.value_dim, prompts);
  }
  return bytes + 64;
}

/// Tickets that it needs: zeros before the first call, left as zeros by every call.
template <class E>
std::int64_t attend_dense_tickets(const device&, const row_view<E>& rows, const device_batch& batch, std::int64_t query_heads) {
  return batch.entries * rows.heads * ceil_div(batch.most_queries * (query_heads / rows.heads), few_rows);
}

/// Softmax attention of the last tokens of each sequence over its rows.
///
/// what        out = sum_t softmax(scale q.k_t) v_t over the keys that options and causality leave visible
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view; Q a multiple of H, query head i reads KV head i / (Q / H); all
///             in device memory; scratch: attend_dense_scratch bytes, any alignment; tickets: attend_dense_tickets, zeros; far: where
///             pages lie that are not near, all_near or far_rows
/// units       lse in nats
/// cost        one launch, and one for prompts where most_queries G > 16. Up to 16 query rows a KV head: K and V are read once for all.
///             Beyond: once for every 64 rows, by 2 (D + Dv) operations on tensor cores a visible pair
/// exactness   few rows: as attend_rows, 2e-5 where scores are some nats and values below 5. Prompts: weights rounded to E, so 2^-9 of
///             the values for bf16, 2^-12 for half; float rows as few rows. Sums in float. The same bits on every run, for any batch around
///             an item, and whatever the launch was planned for
/// errors      usage_error for shapes that do not fit; no visible key: out 0, lse -inf; a NaN score gives NaN; what is not visible
///             may hold anything
/// source      Dao 2023 (FlashAttention-2); FlashDecoding's split over keys
template <element E, element T, class Far = all_near>
void attend_dense(const device& exec, const row_view<const E>& rows, const device_batch& batch, tensor_view<const T, 3> q,
                  tensor_view<T, 3> out, tensor_view<float, 2> lse, const dense_options& options, std::span<std::byte> scratch,
                  std::span<unsigned> tickets, const Far& far = {}, call_site where = call_site::here()) {
  require_range("attend_dense: KV heads", rows.heads, 1, 65536, where);
  require_range("attend_dense: key_dim", rows.key_dim, 1, 576, where);
  require_range("attend_dense: value_dim", rows.value_dim, 1, 576, where);
  require(rows.page_tokens > 0 && std::has_single_bit(static_cast<unsigned>(rows.page_tokens)),
          "attend_dense: page_tokens must be a power of two", where);
  require(q.extents[1] % rows.heads == 0, "attend_dense: the query heads must be a multiple of the KV heads", where);
  require_shape("attend_dense: q", q, {batch.tokens, q.extents[1], rows.key_dim}, where);
  require_shape("attend_dense: out", out, {batch.tokens, q.extents[1], rows.value_dim}, where);
  if (lse.data != nullptr) require_shape("attend_dense: lse", lse, {batch.tokens, q.extents[1]}, where);
  require(static_cast<std::int64_t>(scratch.size()) >= attend_dense_scratch(exec, rows, batch, q.extents[1]),
          "attend_dense: scratch is smaller than attend_dense_scratch", where);
  require(static_cast<std::int64_t>(tickets.size()) >= attend_dense_tickets(exec, rows, batch, q.extents[1]),
          "attend_dense: tickets are fewer than attend_dense_tickets", where);

  constexpr int parts = query_parts<typename operand_of<E>::type, T>, prompt_parts = prompt_query_parts<E, T>;
  dense_launch<E, T, Far> call;
  call.rows = rows;
  call.far = far;
  call.batch = batch;
  call.q = q;
  call.out = out;
  call.lse = lse;
  call.options = options;
  call.rule = rule_of(options.scale, options.soft_cap, rows.key_dim);
  call.tickets = tickets.data();
  call.group = static_cast<int>(q.extents[1] / rows.heads);
  call.prompts = has_prompt_tiles<E, T>(rows.key_dim, rows.value_dim);
  std::int64_t bytes = 0;
  std::byte* const start = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64) % 64;
  const dense_arrays<E> arrays(start, bytes, batch, rows.heads, call.group, rows.value_dim, call.prompts);
  const auto start_kind = [&](int kind, const tile_memory& memory, auto* narrow, auto* wide, int narrow_dim) {
    call.partial = arrays.partial[kind];
    call.blocks = arrays.blocks[kind];
    call.slots = arrays.slots[kind];
    call.tickets_each = arrays.tickets[kind];
    call.memory = memory;
    const launch_shape shape{dim3(static_cast<unsigned>(batch.entries * call.blocks)), dense_threads, merged_bytes(memory, memory.rows)};
    launch(exec, shape, rows.value_dim <= narrow_dim ? narrow : wide, call);
  };
  start_kind(0, tile_memory_of<E, T>(few_rows, rows.key_dim, rows.value_dim),
             attend_dense_kernel<dense_threads, group_tile<dense_threads, 2, E, parts>, E, T, Far>,
             attend_dense_kernel<dense_threads, group_tile<dense_threads, 9, E, parts>, E, T, Far>, 128);
  if (call.prompts && arrays.blocks[1] > 0) {
    start_kind(1, prompt_memory_of<E, T>(prompt_rows, rows.key_dim, rows.value_dim),
               attend_dense_kernel<dense_threads, prompt_tile<dense_threads, 8, E, prompt_parts>, E, T, Far>,
               attend_dense_kernel<dense_threads, prompt_tile<dense_threads, widest_prompt_pairs<E, T>, E, prompt_parts>, E, T, Far>, 128);
  }
}

}  // namespace kvx
