#pragma once
// The two quantisers on the device: symbols of one step, levels and ranges of a plan.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/rans_writer.cuh>
#include <kvx/codec/quantize.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/math.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// What quantisers leave of the chunks of a launch; no_symbol where a coefficient, or the range of its run, is beyond all numbers.
///
/// symbols     (chunks, most_components, pitch), pitch the symbol_pitch of most_tokens
/// ranges      (chunks, most_runs, most_tokens), of each chunk (stored runs, its tokens) dense; of a plan alone
struct device_symbols {
  std::int16_t* symbols = nullptr;
  run_range* ranges = nullptr;

  __device__ __forceinline__ component_matrix<std::int16_t> of(const device_chunks& all, std::int64_t chunk, const device_chunk& c) const {
    const std::int64_t pitch = all.symbol_pitch_of();
    return {symbols + chunk * all.most_components * pitch, c.components, c.tokens, pitch};
  }
  __device__ __forceinline__ run_range* ranges_of(const device_chunks& all, std::int64_t chunk) const {
    return ranges + chunk * all.most_runs * all.most_tokens;
  }
};

inline constexpr int quantise_threads = 256, quantise_each = 8;

template <int Threads>
__global__ void __launch_bounds__(Threads)
    quantise_steps_kernel(device_chunks chunks, std::int64_t parts, float inverse_step, device_symbols out) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) / parts, part = static_cast<std::int64_t>(blockIdx.x) % parts;
  const device_chunk chunk = chunks.list[number];
  const component_matrix<std::int16_t> symbols = out.of(chunks, number, chunk);
  const int rounding = chunk.model->tables.rounding;
  const std::int64_t end = chunk.components * chunk.tokens;
#pragma unroll 4
  for (int i = 0; i < quantise_each; ++i) {
    const std::int64_t at = (part * quantise_each + i) * Threads + static_cast<int>(threadIdx.x);
    if (at >= end) break;
    const std::int64_t c = at / chunk.tokens, t = at % chunk.tokens;
    const std::int32_t n = quantised(chunk.coefficient(c, t), inverse_step, rounding);
    symbols.component(c)[t] = n == beyond_symbols ? no_symbol : static_cast<std::int16_t>(n);
  }
}

/// Symbols of one step; see `quantised`.
///
/// cost        one launch: coefficients are read once
inline void quantise(const device& exec, const dead_zone&, const device_chunks& chunks, int log2_step, const device_symbols& out) {
  const std::int64_t parts = ceil_div(chunks.most_components * chunks.most_tokens, quantise_threads * quantise_each);
  launch(exec, {grid_of(chunks.count * parts), quantise_threads}, quantise_steps_kernel<quantise_threads>, chunks, parts,
         power_of_code(-log2_step), out);
}

/// The lowest and highest of some values, the first of equal ones, as the host finds them.
struct value_ends {
  float low = 0, high = 0;
  int finite = 1;

  __device__ __forceinline__ void add(const value_ends& later) {
    if (later.low < low) low = later.low;
    if (high < later.high) high = later.high;
    finite = finite & later.finite;
  }
};

/// One run of 32 tokens by a block: its warps take components that follow each other, and are brought together in that order.
template <int Threads>
__global__ void __launch_bounds__(Threads) quantise_groups_kernel(device_chunks chunks, std::int64_t tiles, device_symbols out) {
  constexpr int warps = Threads / warp_lanes;
  __shared__ value_ends ends[warps][warp_lanes];
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) / tiles, number = unit / chunks.most_runs;
  const device_chunk chunk = chunks.list[number];
  const std::int64_t r = unit % chunks.most_runs;
  const std::int64_t first_token = static_cast<std::int64_t>(blockIdx.x) % tiles * warp_lanes;
  if (r >= chunk.model->run_count || first_token >= chunk.tokens) return;
  const packed_run run = chunk.model->runs[r];
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const std::int64_t t = first_token + lane;
  const bool there = t < chunk.tokens;
  const std::int64_t begin = std::int64_t{run.size} * warp / warps, end = std::int64_t{run.size} * (warp + 1) / warps;
  value_ends mine;
  for (std::int64_t c = begin; c < end; ++c) {
    const float x = there ? chunk.coefficient(run.first + c, t) : 0.0f;
    const value_ends one{x, x, is_finite(x) ? 1 : 0};
    if (c == begin) {
      mine = one;
    } else {
      mine.add(one);
    }
  }
  ends[warp][lane] = mine;
  __syncthreads();
  bool any = false;
  for (int w = 0; w < warps; ++w) {
    if (std::int64_t{run.size} * w / warps == std::int64_t{run.size} * (w + 1) / warps) continue;
    if (any) {
      mine.add(ends[w][lane]);
    } else {
      mine = ends[w][lane];
    }
    any = true;
  }
  if (!there) return;
  const bool stored = run.bits > 0 && mine.finite != 0;
  const run_range range = stored ? make_range(mine.low, mine.high, run.bits) : run_range{};
  const bool fits = mine.finite != 0 && is_finite(range);
  if (warp == 0 && run.bits > 0) out.ranges_of(chunks, number)[std::int64_t{run.before} * chunk.tokens + t] = range;
  const component_matrix<std::int16_t> levels = out.of(chunks, number, chunk);
  for (std::int64_t c = begin; c < end; ++c) {
    const std::int32_t level = stored ? level_of(chunk.coefficient(run.first + c, t), range, run.bits) : 0;
    levels.component(run.first + c)[t] = fits ? static_cast<std::int16_t>(level) : no_symbol;
  }
}

/// Ranges and levels of the models' plans.
///
/// cost        one launch: coefficients are read twice
inline void quantise(const device& exec, const bit_groups&, const device_chunks& chunks, int, const device_symbols& out) {
  constexpr int threads = 128;
  const std::int64_t tiles = ceil_div(chunks.most_tokens, warp_lanes);
  launch(exec, {grid_of(chunks.count * chunks.most_runs * tiles), threads}, quantise_groups_kernel<threads>, chunks, tiles, out);
}

}  // namespace kvx
