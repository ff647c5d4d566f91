#pragma once
// Partial attention in memory: what each piece of the keys leaves, and how the last block brings the pieces together in their order.

#include <kvx/attend/cuda/stage_queries.cuh>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/power_of_two.cuh>
#include <kvx/core/math.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Results of pieces in scratch. A slot is one piece of one block's query rows.
///
/// sums        (slots, rows, pitch) undivided
/// states      (slots, rows) maximum in units of log 2, and sum
struct partial_results {
  float* sums = nullptr;
  float2* states = nullptr;
  int rows = 0;
  int pitch = 0;

  __device__ float* sums_of(std::int64_t slot, int row) const { return sums + (slot * rows + row) * pitch; }
  __device__ float2* state_of(std::int64_t slot, int row) const { return states + slot * rows + row; }
};

/// Most pieces of a result: four to each lane of the warp that weighs them.
inline constexpr int most_pieces = 128;

/// Bytes of dynamic shared memory of a block that attends and may merge.
inline std::size_t merged_bytes(const tile_memory& m, int rows) {
  const int merging = rows * (most_pieces + 1 + 2) * 4;
  return static_cast<std::size_t>(m.bytes > merging ? m.bytes : merging);
}

/// Calls write(row, component, x, y, sum of the row's weights) for every two neighbours of the sums that a lane holds, and
/// state(row, max, sum) once a row.
///
/// what        the softmax must be finished; `state` is called by one lane of the block alone
template <class Tile, class Write, class State>
__device__ void hand_over(const Tile& tile, int rows, int value_dim, const Write& write, const State& state) {
  const int lane = lane_of_thread(), pairs = Tile::pairs(value_dim);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = Tile::first_row() + lane / 4 + 8 * r;
    if (row >= rows) continue;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(tile.sums) / sizeof(tile.sums[0])); ++i) {
      if (i < pairs) {
#pragma unroll
        for (int half_pair = 0; half_pair < 2; ++half_pair) {
          const int d = Tile::component(i) + half_pair * 8 + lane % 4 * 2;
          if (d < value_dim) write(row, d, tile.sums[i][half_pair][2 * r], tile.sums[i][half_pair][2 * r + 1], tile.softmax.sum[r]);
        }
      }
    }
    if (Tile::component(0) == 0 && lane % 4 == 0) state(row, tile.softmax.max[r], tile.softmax.sum[r]);
  }
}

/// Leaves the sums and states of a block's rows in a slot.
template <class Tile>
__device__ void leave_partial(const Tile& tile, int rows, int value_dim, const partial_results& to, std::int64_t slot) {
  hand_over(
      tile, rows, value_dim,
      [&](int row, int d, float x, float y, float) {
        *reinterpret_cast<float2*>(to.sums_of(slot, row) + d) = float2{x, y};
      },
      [&](int row, float max, float sum) {
        *to.state_of(slot, row) = float2{max, sum};
      });
}

/// What the rows of a unit were before any piece: nothing, or the residents' part.
///
/// shapes      states (rows), sums (rows, pitch)
struct earlier_part {
  const softmax_state* states = nullptr;
  const float* sums = nullptr;
  std::int64_t pitch = 0;

  __device__ softmax_state state(int row) const { return states != nullptr ? states[row] : softmax_state{}; }
};

/// Brings `pieces` pieces together behind an earlier part, in their order, by one block.
///
/// shapes      pieces of slots `slot` .. slot + pieces - 1; shared: floats (rows, pieces + 1) and states (rows) of dynamic memory
/// what        write(row, component, x, sum) gets the undivided component and the row's sum of weights; state(row, max, sum) comes behind a
///             barrier after the last read of the earlier part, which it may therefore overwrite; so must not write
/// exactness   weights are 2^(max - largest max); the sum over pieces has a fixed shape. A part without rows is not read
template <int Threads, class Write, class State>
__device__ void merge_partials(std::byte* shared, const partial_results& from, std::int64_t slot, int pieces, int rows, int value_dim,
                               const earlier_part& earlier, const Write& write, const State& state) {
  constexpr int each = most_pieces / warp_lanes;
  float* const weights = reinterpret_cast<float*>(shared);  // (rows, pieces + 1)
  float* const totals = weights + rows * (pieces + 1);  // (rows, 2): max, sum
  const int lane = lane_of_thread();
  for (int row = warp_of_thread(); row < rows; row += Threads / warp_lanes) {
    const softmax_state old = earlier.state(row);
    const float old_max = old.sum != 0 ? old.max * log2_of_e : -infinity;
    float2 mine[each];
    float top = old_max;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int piece = i * warp_lanes + lane;
      mine[i] = piece < pieces ? *from.state_of(slot + piece, row) : float2{-infinity, 0};
      if (mine[i].y != 0 && mine[i].x > top) top = mine[i].x;
    }
    top = warp_max(top);
    const float against = top == -infinity ? 0 : top;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int piece = i * warp_lanes + lane;
      const float weight = mine[i].y != 0 ? power_of_two(mine[i].x - against) : 0;
      if (piece < pieces) weights[row * (pieces + 1) + 1 + piece] = weight;
      if (mine[i].y != 0) sum += weight * mine[i].y;
    }
    const float old_weight = old.sum != 0 ? power_of_two(old_max - against) : 0;
    sum = warp_sum(sum) + (old.sum != 0 ? old_weight * old.sum : 0);
    if (lane == 0) {
      weights[row * (pieces + 1)] = old_weight;
      totals[2 * row] = top;
      totals[2 * row + 1] = sum;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * value_dim; i += Threads) {
    const int row = i / value_dim, d = i % value_dim;
    const float* const weight = weights + row * (pieces + 1);  // (pieces + 1)
    float sum = weight[0] != 0 ? weight[0] * earlier.sums[row * earlier.pitch + d] : 0;
#pragma unroll 8
    for (int piece = 0; piece < pieces; ++piece) {
      const float w = weight[1 + piece];
      if (w != 0) sum += w * from.sums_of(slot + piece, row)[d];
    }
    write(row, d, sum, totals[2 * row + 1]);
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < rows) {
    const int row = static_cast<int>(threadIdx.x);
    state(row, totals[2 * row], totals[2 * row + 1]);
  }
}

/// The state of a row whose maximum is in units of log 2.
__device__ __forceinline__ softmax_state state_of(float max, float sum) { return {max * ln_of_2, sum}; }

}  // namespace kvx
