#pragma once
// Where the tokens of a tree stand on the lines of composite indices, on the device: behind the links of their blocks.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/double_root.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/cuda/link_call.cuh>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/projections.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/row_view.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Threads of a block that places the keys of one block of tokens.
inline constexpr int place_threads = 256;

/// Signs of the components of all lines, 32 to a word.
struct line_signs {
  static constexpr int words = 576 / 32 + 1;  // the height's component lies behind D
  unsigned negative[most_lines][words];

  __device__ __forceinline__ float component(int line, int d) const { return (negative[line][d / 32] >> d % 32 & 1) != 0 ? -1.0f : 1.0f; }
};

/// All threads of a block call, and see the signs behind their next barrier.
__device__ __forceinline__ void fill_line_signs(std::uint64_t seed, int lines, int dim, line_signs& signs) {
  const int words = dim / 32 + 1, warps = static_cast<int>(blockDim.x) / warp_lanes;
  for (int w = warp_of_thread(); w < lines * words; w += warps) {
    const int line = w / words, word = w % words;
    const unsigned negative = __ballot_sync(all_lanes, line_component(seed, line, 32 * word + lane_of_thread()) < 0);
    if (lane_of_thread() == 0) signs.negative[line][word] = negative;
  }
}

template <int Threads, class E>
__global__ void __launch_bounds__(Threads) place_keys_kernel(link_call<E> call, column_array places) {
  __shared__ line_signs signs;
  const std::int64_t head = blockIdx.x % call.rows.heads;
  const block_to_index of = call.blocks[blockIdx.x / call.rows.heads];
  const int block = call.shape.block, lines = lines_of(call.shape), dim = call.rows.key_dim, P = call.rows.page_tokens;
  const std::int64_t first = of.block * block;
  fill_line_signs(call.shape.seed, lines, dim, signs);
  __syncthreads();
  const float radius = packed_page{call.members.at(of.pages[first / P], head), P, packed_page::entry_bytes(call.shape)}.radius();
  for (int turn = 0; turn < block; turn += Threads / fixed_dot_lanes) {
    const int t = turn + static_cast<int>(threadIdx.x) / fixed_dot_lanes;
    const bool writes = t < block && threadIdx.x % fixed_dot_lanes == 0;
    const std::int64_t token = first + (t < block ? t : block - 1);
    const double square = square_in_tree(call, of.pages, head, token);
    const float height = square < 0 ? 0.0f : sphere_height(radius, square, double_root{});
    const E* const key = call.key(of.pages, head, token);
    float* const to = reinterpret_cast<float*>(places.at(of.pages[token / P], head)) + token % P * lines;
    for (int j = 0; j < lines; ++j) {
      const double dot = fixed_dot_of_lanes([&](int d) { return to_float(key[d]); }, [&](int d) { return signs.component(j, d); }, dim);
      if (writes) to[j] = square < 0 ? quiet_nan : place_of_key(dot, height, signs.component(j, dim), radius);
    }
  }
}

/// Fills the places of blocks of every KV head of one layer.
///
/// what        place of the host's indexer, see projections.hpp
/// shapes      blocks (count) in device memory, from the first pages of their sequences on; members, places: columns of dci_tree; radii are
///             there, by link_blocks of the same blocks; finite_values: see dci_head
/// cost        one launch, a block of threads a block of tokens and head; keys are read from the caches once for each line
/// exactness   the bytes of the host
/// errors      usage_error: a shape that does not fit the page or has no composite indices
template <element E>
void place_keys(const device& exec, const dci_shape& shape, const row_view<const E>& rows, const column_array& members,
                const column_array& places, std::int64_t sink, bool finite_values, const block_to_index* blocks, std::int64_t count,
                call_site where = call_site::here()) {
  require(is_valid(shape, rows.page_tokens), "place_keys: the block must be whole pages, at most 65,536 tokens", where);
  require(lines_of(shape) > 0, "place_keys: the shape has no composite indices", where);
  require_range("place_keys: key_dim", rows.key_dim, 1, 576, where);
  require_range("place_keys: blocks", count, 0, INT32_MAX / (rows.heads > 0 ? rows.heads : 1), where);
  link_call<E> call;
  call.shape = shape;
  call.rows = rows;
  call.members = members;
  call.sink = sink;
  call.finite_values = finite_values;
  call.blocks = blocks;
  launch(exec, {.grid = dim3(static_cast<unsigned>(count * rows.heads)), .threads = place_threads}, place_keys_kernel<place_threads, E>,
         call, places);
}

}  // namespace kvx
