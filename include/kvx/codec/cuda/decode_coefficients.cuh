#pragma once
// The bytes of chunks to coefficients on the device, many chunks a launch.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/packed.cuh>
#include <kvx/codec/cuda/rans_reader.cuh>
#include <kvx/codec/quantize.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Coefficients of symbols of one step; see read_stream.
struct step_sink {
  const device_chunk& chunk;
  int log2_step;
  float unit;
  int rounding;
  const std::uint16_t* levels;
  float* out;

  __device__ __forceinline__ void begin(std::int64_t c) {
    const device_scale_tables& tables = chunk.model->tables;
    levels = tables.levels + std::int64_t{table_of_scale(chunk.model->scales[c], log2_step)} * scale_tables::levels;
    out = chunk.coefficients + c * chunk.pitch;
  }
  __device__ __forceinline__ void put(std::int32_t t, std::int32_t v) const { out[t] = dequantised(v, levels, rounding, unit); }
};

/// Coefficients of levels; ranges (stored runs, tokens).
struct group_sink {
  const device_chunk& chunk;
  const std::byte* ranges;
  packed_run run;
  float* out;

  __device__ __forceinline__ void begin(std::int64_t c) {
    run = chunk.model->runs[chunk.model->run_of[c]];
    out = chunk.coefficients + c * chunk.pitch;
  }
  __device__ __forceinline__ void put(std::int32_t t, std::int32_t level) const {
    out[t] = run.bits > 0 ? value_of(level, range_of_bits(ranges, 32 * (std::int64_t{run.before} * chunk.tokens + t))) : 0.0f;
  }
};

/// Rows of coefficients that the chunk does not have; by a warp.
__device__ __forceinline__ void zero_rest(const device_chunk& chunk, std::int64_t components) {
  for (std::int64_t c = components; c < chunk.components; ++c) {
    for (std::int32_t t = lane_of_thread(); t < chunk.tokens; t += warp_lanes) chunk.coefficients[c * chunk.pitch + t] = 0;
  }
}

/// Whether a chunk of rows has the bytes of its rows.
__device__ __forceinline__ status::code check_rows(const device_chunk& chunk, std::int64_t row_bytes) {
  const std::int64_t expected = static_cast<std::int64_t>(sizeof(chunk_header)) + chunk.tokens * chunk.model->basis.features * row_bytes;
  return chunk.size < expected ? status::code::truncated : chunk.size > expected ? status::code::corrupt : status::code::ok;
}

template <int Threads>
__global__ void __launch_bounds__(Threads) decode_steps_kernel(device_chunks chunks, std::int64_t row_bytes, chunk_result* results) {
  static_assert(Threads == warp_lanes);
  __shared__ std::uint32_t ring[ring_entries];
  const device_chunk chunk = chunks.list[blockIdx.x];
  chunk_header header;
  status::code code = on_4(chunk.bytes) ? read_header(chunk, header) : status::code::unfit;
  if (code == status::code::ok && header.kind == chunk_kind::rows && row_bytes > 0) {
    code = check_rows(chunk, row_bytes);
  } else if (code == status::code::ok) {
    const component_scale* const scales = chunk.model->scales;
    const bool its = header.kind == chunk_kind::step_rans && header.order == 0 &&
                     header.components == warp_coded_components(scales, chunk.model->basis.rank, header.log2_step);
    code = !its ? status::code::corrupt : header.components > chunk.components ? status::code::no_space : code;
    if (code == status::code::ok) {
      const symbol_lookup* const tables = chunk.model->tables.lookups;
      const int log2_step = header.log2_step;
      const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return tables[table_of_scale(scales[c], log2_step)]; };
      step_sink sink{chunk,   log2_step, power_of_code(log2_step) * (1.0f / scale_tables::level_units), chunk.model->tables.rounding,
                     nullptr, nullptr};
      constexpr auto front = static_cast<std::int64_t>(sizeof(chunk_header));
      code = read_stream(chunk.bytes + front, chunk.size - front, header.components, chunk.tokens, alphabet_of, sink, ring);
      zero_rest(chunk, header.components);
    }
  }
  if (threadIdx.x == 0) results[blockIdx.x] = {code, header.kind, chunk.size};
}

/// Headers and ranges of chunks of a plan, a block each: what the kernels behind it need not check.
template <bool Rans, int Threads>
__global__ void __launch_bounds__(Threads) check_groups_kernel(device_chunks chunks, std::int64_t row_bytes, chunk_result* results) {
  const device_chunk chunk = chunks.list[blockIdx.x];
  const device_span_model& model = *chunk.model;
  chunk_header header;
  status::code code = on_4(chunk.bytes) ? read_header(chunk, header) : status::code::unfit;
  if (code == status::code::ok && header.kind == chunk_kind::rows && row_bytes > 0) {
    code = check_rows(chunk, row_bytes);
  } else if (code == status::code::ok) {
    const bool fixed = header.kind == chunk_kind::groups_fixed, coded = Rans && header.kind == chunk_kind::groups_rans && header.order == 0;
    const packed_places places = model.places(static_cast<packing>(header.order), chunk.tokens);
    const std::byte* const packed = chunk.bytes + sizeof header;
    const std::int64_t size = chunk.size - static_cast<std::int64_t>(sizeof header), needed = ceil_div(places.bits(), 8);
    if ((!fixed && !coded) || header.components != model.plan_components) {
      code = status::code::corrupt;
    } else if (model.plan_components > chunk.components) {
      code = status::code::no_space;
    } else if (fixed && size != needed) {
      code = size < needed ? status::code::truncated : status::code::corrupt;
    } else if (coded && size < 4 * model.stored_runs * std::int64_t{chunk.tokens}) {
      code = status::code::truncated;
    }
    int sound = 1;
    if (code == status::code::ok) {
      for (std::int64_t i = threadIdx.x; i < model.run_count * std::int64_t{chunk.tokens}; i += Threads) {
        const packed_run run = model.runs[i / chunk.tokens];
        const std::int64_t t = i % chunk.tokens;
        const std::int64_t at = fixed ? places.range_at(run, t) : 32 * (std::int64_t{run.before} * chunk.tokens + t);
        if (run.bits > 0 && !is_finite(range_of_bits(packed, at))) sound = 0;
      }
      const int rest = static_cast<int>(places.bits() % 8);
      if (fixed && rest != 0 && static_cast<std::uint32_t>(packed[needed - 1]) >> rest != 0) sound = 0;
    }
    if (__syncthreads_and(sound) == 0) code = status::code::corrupt;
  }
  if (threadIdx.x == 0) results[blockIdx.x] = {code, header.kind, chunk.size};
}

template <int Threads>
__global__ void __launch_bounds__(Threads) decode_groups_kernel(device_chunks chunks, chunk_result* results) {
  static_assert(Threads == warp_lanes);
  __shared__ std::uint32_t ring[ring_entries];
  const chunk_result result = results[blockIdx.x];
  if (result.code != status::code::ok || result.kind != chunk_kind::groups_rans) return;
  const device_chunk chunk = chunks.list[blockIdx.x];
  const symbol_model model = chunk.model->levels;
  const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return model.tables[model.table_of[c]]; };
  const std::int64_t front = static_cast<std::int64_t>(sizeof(chunk_header)) + 4 * chunk.model->stored_runs * std::int64_t{chunk.tokens};
  group_sink sink{chunk, chunk.bytes + sizeof(chunk_header), {}, nullptr};
  const status::code code =
      read_stream(chunk.bytes + front, chunk.size - front, chunk.model->plan_components, chunk.tokens, alphabet_of, sink, ring);
  zero_rest(chunk, chunk.model->plan_components);
  __syncwarp();  // all lanes have read the result
  if (threadIdx.x == 0) results[blockIdx.x].code = code;
}

/// The coefficients of chunks.
///
/// shapes      of each chunk room for coefficients (components, tokens): rows that it does not have become 0; results (chunks) in device
///             memory: code and kind of each
/// row_bytes   of an element, where chunks of rows are told as such and have no coefficients; 0: they are corrupt
/// exactness   the host's coefficients from the same bytes
/// cost        one launch, three for a plan; capturable
/// errors      in results: truncated, corrupt (what this codec and model do not write), no_space (more components than there is room for),
///             unfit (bytes off a multiple of 4); coefficients hold garbage then. Never a read outside the bytes, nor a write outside the
///             room. usage_error: bounds
template <class T, class Q, class E>
void decode_coefficients(const device& exec, const chain<T, Q, E>&, const device_chunks& chunks, chunk_result* results,
                         std::int64_t row_bytes = 0, call_site where = call_site::here()) {
  static_assert(std::same_as<E, rans> || std::same_as<E, fixed_width>, "kvx: on the device levels are coded by rans or at a fixed width");
  require_chunks(chunks, where);
  const dim3 grid = grid_of(chunks.count);
  if constexpr (std::same_as<Q, dead_zone>) {
    launch(exec, {grid, warp_lanes}, decode_steps_kernel<warp_lanes>, chunks, row_bytes, results);
  } else {
    constexpr int threads = 128;
    launch(exec, {grid, threads}, check_groups_kernel<std::same_as<E, rans>, threads>, chunks, row_bytes, results);
    unpack(exec, chunks, results);
    if constexpr (std::same_as<E, rans>) launch(exec, {grid, warp_lanes}, decode_groups_kernel<warp_lanes>, chunks, results);
  }
}

}  // namespace kvx
