#pragma once
// Parents of the tokens of a tree on the device: tensor cores propose, sums in double decide, as on the host.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/cuda/link_call.cuh>
#include <kvx/index/cuda/link_tile.cuh>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/cuda/row_dots.cuh>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// The longest key of each block, and which of its tokens are not in the tree.
template <int Threads, class E>
__global__ void __launch_bounds__(Threads) measure_blocks_kernel(link_call<E> call) {
  __shared__ block_scratch<double, Threads> reduction;
  const std::int64_t head = blockIdx.x % call.rows.heads;
  const block_to_index of = call.blocks[blockIdx.x / call.rows.heads];
  const int block = call.shape.block;
  double largest = 0;
  for (int turn = 0; turn < block; turn += Threads / fixed_dot_lanes) {
    const int t = turn + static_cast<int>(threadIdx.x) / fixed_dot_lanes;
    const std::int64_t token = of.block * block + (t < block ? t : block - 1);
    const double square = square_in_tree(call, of.pages, head, token);
    if (t >= block || threadIdx.x % fixed_dot_lanes != 0) continue;
    if (square > largest) largest = square;
    if (square < 0) call.link(of.pages, head, token) = not_in_tree;
  }
  largest = block_reduce<Threads>(
      largest, [](double a, double b) { return a < b ? b : a; }, reduction);
  if (threadIdx.x == 0) call.to.largest[blockIdx.x] = largest;
}

/// Square norms of the promoted tokens of each run and head.
template <int Threads, class E>
__global__ void __launch_bounds__(Threads) measure_promoted_kernel(link_call<E> call, int chunks) {
  const std::int64_t unit = blockIdx.x / chunks, promoted = call.promoted.count();
  const run_to_link run = call.runs[unit / call.rows.heads];
  const std::int64_t i = std::int64_t{blockIdx.x % chunks} * (Threads / fixed_dot_lanes) + threadIdx.x / fixed_dot_lanes;
  const std::int64_t token = i < promoted ? call.promoted.positions[i] : run.end;
  const bool here = token < run.end;
  const double square = square_in_tree(call, run.pages, unit % call.rows.heads, here ? token : run.end - 1);
  if (here && threadIdx.x % fixed_dot_lanes == 0) call.to.squares[unit * promoted + i] = square;
}

/// Links of one tile of one block of one KV head.
template <int Threads, class E>
__global__ void __launch_bounds__(Threads) link_blocks_kernel(link_call<E> call, int tiles) {
  __shared__ typename tile_linker<Threads, E>::scratch scratch;
  const std::int64_t unit = blockIdx.x / tiles;
  tile_linker<Threads, E>(call, unit / call.rows.heads, unit % call.rows.heads, static_cast<int>(blockIdx.x % tiles), scratch,
                          dynamic_shared<std::byte>())
      .link();
}

/// Fills the links of blocks of every KV head of one layer, and the radius of each of their pages.
///
/// what        link of the host's indexer, see dci_links.hpp
/// shapes      blocks (count), runs (run_count) in device memory, all of their pages; blocks of a run follow each other in the list.
///             Earlier blocks of each sequence are indexed already, by launches before this one. members, links: columns of dci_tree;
///             finite_values: see dci_head
/// cost        three launches: reads the keys of the blocks three times and the promoted keys before the end of each run once; then, for
///             each 64 tokens of a block, the promoted keys twice, for products on tensor cores. Float keys, and promoted ones, are
///             compared with those one level up in double
/// exactness   the bytes of the host
/// errors      usage_error: a shape that does not fit the page or keeps no links
template <element E>
void link_blocks(const device& exec, const dci_shape& shape, const row_view<const E>& rows, const column_array& members,
                 const column_array& links, std::int64_t sink, bool finite_values, const promoted_tokens& promoted,
                 const block_to_index* blocks, std::int64_t count, const run_to_link* runs, std::int64_t run_count, const link_arrays& to,
                 call_site where = call_site::here()) {
  require(is_valid(shape, rows.page_tokens), "link_blocks: the block must be whole pages, at most 65,536 tokens", where);
  require(keeps_links(shape), "link_blocks: the shape keeps no links", where);
  require_range("link_blocks: key_dim", rows.key_dim, 1, 576, where);
  const std::int64_t tiles = ceil_div(shape.block, link_tokens), heads = rows.heads;
  const std::int64_t chunks = ceil_div(promoted.count(), link_threads / fixed_dot_lanes);
  require_range("link_blocks: blocks", count * heads * tiles, 0, INT32_MAX, where);
  require_range("link_blocks: promoted tokens", run_count * heads * chunks, 0, INT32_MAX, where);
  const link_call<E> call{shape, rows, members, links, sink, finite_values, promoted, blocks, runs, to, rows_on_16(rows.key)};
  const auto grid = [](std::int64_t blocks_of_threads) { return dim3(static_cast<unsigned>(blocks_of_threads)); };
  launch(exec, {.grid = grid(count * heads), .threads = link_threads}, measure_blocks_kernel<link_threads, E>, call);
  launch(exec, {.grid = grid(run_count * heads * chunks), .threads = link_threads}, measure_promoted_kernel<link_threads, E>, call,
         static_cast<int>(chunks));
  launch(exec,
         {.grid = grid(count * heads * tiles),
          .threads = link_threads,
          .shared_bytes = static_cast<std::size_t>(tile_linker<link_threads, E>::shared_bytes(rows.key_dim))},
         link_blocks_kernel<link_threads, E>, call, static_cast<int>(tiles));
}

}  // namespace kvx
