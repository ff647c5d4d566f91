#pragma once
// Coefficients to the bytes of chunks on the device, many chunks a launch.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/packed.cuh>
#include <kvx/codec/cuda/quantize.cuh>
#include <kvx/codec/cuda/rans_reader.cuh>
#include <kvx/codec/cuda/rans_writer.cuh>
#include <kvx/core/scratch_parts.hpp>

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Room that coding may use, and what becomes of a chunk whose coding failed.
///
/// row_bytes   of one element of its rows: a chunk that coding would not shorten, or could not hold, becomes one of rows, whose kind and
///             length are told and whose rows another kernel stores. 0: it fails
struct chunk_room {
  std::int64_t row_bytes = 0;
  std::int64_t bound = 0;  ///< of a chunk of rows
  std::int64_t room = 0;

  __device__ __forceinline__ chunk_room(const device_chunk& c, std::int64_t bytes_of_element) : row_bytes(bytes_of_element) {
    bound = static_cast<std::int64_t>(sizeof(chunk_header)) + c.tokens * c.model->basis.features * row_bytes;
    room = row_bytes > 0 && bound - 1 < c.size ? bound - 1 : c.size;
  }

  /// By one thread.
  __device__ __forceinline__ chunk_result finish(const device_chunk& c, const chunk_header& coded, status::code code,
                                                 std::int64_t bytes) const {
    if (code == status::code::ok) {
      write_header(c, coded);
      return {code, coded.kind, bytes};
    }
    if (row_bytes == 0) return {code, chunk_kind::rows, 0};
    if (c.size < bound) return {status::code::no_space, chunk_kind::rows, 0};
    write_header(c, {});
    return {status::code::ok, chunk_kind::rows, bound};
  }
};

inline constexpr int encode_chunk_threads = 256;

template <int Threads>
__global__ void __launch_bounds__(Threads, 1)
    encode_steps_kernel(device_chunks chunks, int log2_step, device_symbols in, std::int64_t row_bytes, chunk_result* results) {
  __shared__ rans_writer_scratch<Threads> scratch;
  const device_chunk chunk = chunks.list[blockIdx.x];
  const chunk_room room(chunk, row_bytes);
  const component_scale* const scales = chunk.model->scales;
  const symbol_lookup* const tables = chunk.model->tables.lookups;
  const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return tables[table_of_scale(scales[c], log2_step)]; };
  constexpr auto front = static_cast<std::int64_t>(sizeof(chunk_header));
  std::int64_t bytes = 0;
  status::code code = status::code::no_space;
  if (!on_4(chunk.bytes)) {
    code = status::code::unfit;
  } else if (room.room >= front) {
    code = write_stream<Threads>(in.of(chunks, blockIdx.x, chunk), alphabet_of, chunk.bytes + front, room.room - front, scratch, bytes);
  }
  const chunk_header header{chunk_kind::step_rans, 0, static_cast<std::int16_t>(log2_step), static_cast<std::uint32_t>(chunk.components)};
  if (threadIdx.x == 0) results[blockIdx.x] = room.finish(chunk, header, code, bytes + front);
}

/// Whether a quantiser has left no_symbol anywhere; by all threads of a block.
template <int Threads>
__device__ __forceinline__ bool holds_no_symbol(const component_matrix<const std::int16_t>& values) {
  int found = 0;
  for (std::int64_t c = warp_of_thread(); c < values.components; c += Threads / warp_lanes) {
#pragma unroll 4
    for (std::int32_t t = lane_of_thread(); t < values.tokens; t += warp_lanes) found |= values.component(c)[t] == no_symbol ? 1 : 0;
  }
  return __syncthreads_or(found) != 0;
}

template <bool Rans, int Threads>
__global__ void __launch_bounds__(Threads, 1)
    encode_groups_kernel(device_chunks chunks, device_symbols in, packing order, std::int64_t row_bytes, chunk_result* results) {
  __shared__ rans_writer_scratch<Threads> scratch;
  const device_chunk chunk = chunks.list[blockIdx.x];
  const chunk_room room(chunk, row_bytes);
  constexpr auto front = static_cast<std::int64_t>(sizeof(chunk_header));
  const std::int64_t fixed = ceil_div(chunk.model->plan_bits * chunk.tokens, 8);
  const component_matrix<const std::int16_t> levels = in.of(chunks, blockIdx.x, chunk);
  chunk_header header{chunk_kind::groups_fixed, static_cast<std::uint8_t>(order), 0, static_cast<std::uint32_t>(chunk.components)};
  std::int64_t bytes = 0;
  status::code code = status::code::no_space;
  if (!on_4(chunk.bytes)) {
    code = status::code::unfit;
  } else if (room.room >= front) {
    code = holds_no_symbol<Threads>(levels) ? status::code::unfit : status::code::ok;
  }
  if constexpr (Rans) {
    const std::int64_t range_bytes = 4 * chunk.model->stored_runs * std::int64_t{chunk.tokens};
    const std::int64_t most = room.room - front < fixed ? room.room - front : fixed;  // what does not gain is stored at the fixed width
    if (code == status::code::ok && most >= range_bytes) {
      const run_range* const ranges = in.ranges_of(chunks, blockIdx.x);
      auto* const to = reinterpret_cast<std::uint32_t*>(chunk.bytes + front);
      for (std::int64_t i = threadIdx.x; i < range_bytes / 4; i += Threads) to[i] = bits_of_range(ranges[i]);
      const symbol_model model = chunk.model->levels;
      const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return model.tables[model.table_of[c]]; };
      const status::code coded =
          write_stream<Threads>(levels, alphabet_of, chunk.bytes + front + range_bytes, most - range_bytes, scratch, bytes);
      if (coded == status::code::ok) header = {chunk_kind::groups_rans, 0, 0, header.components};
      bytes += range_bytes;
    }
  }
  if (code == status::code::ok && header.kind == chunk_kind::groups_fixed) {
    bytes = fixed;
    if (fixed > room.room - front) code = status::code::no_space;
  }
  if (threadIdx.x == 0) results[blockIdx.x] = room.finish(chunk, header, code, bytes + front);
}

/// What encoding needs beside its input, from one block of memory; without one it counts.
template <class T, class Q, class E>
device_symbols take_symbols(scratch_parts& parts, const chain<T, Q, E>&, const device_chunks& chunks) {
  device_symbols s;
  s.symbols = parts.take<std::int16_t>(chunks.count * chunks.most_components * chunks.symbol_pitch_of());
  if constexpr (std::same_as<Q, bit_groups>) s.ranges = parts.take<run_range>(chunks.count * chunks.most_runs * chunks.most_tokens);
  return s;
}

/// Bytes of scratch of encode_coefficients.
template <class T, class Q, class E>
std::int64_t encode_coefficients_scratch(const chain<T, Q, E>& codec, const device_chunks& chunks) {
  scratch_parts parts;
  (void)take_symbols(parts, codec, chunks);
  return parts.used;
}

/// Coefficients to the bytes of chunks.
///
/// shapes      of each chunk coefficients (components, tokens), components being those that the step or the plan keeps (kept_components of
///             the host); scratch of encode_coefficients_scratch bytes; results (chunks) in device memory
/// row_bytes   see chunk_room
/// exactness   the bytes of the host's encode_coefficients
/// cost        two launches, three where levels may be packed; capturable
/// errors      in results: no_space, unfit. usage_error: bounds. An entropy coder of the host alone (DEFLATE) is refused at compile time
template <class T, class Q, class E>
void encode_coefficients(const device& exec, const chain<T, Q, E>& codec, const device_chunks& chunks, int log2_step, std::byte* scratch,
                         chunk_result* results, std::int64_t row_bytes = 0, call_site where = call_site::here()) {
  static_assert(std::same_as<E, rans> || std::same_as<E, fixed_width>, "kvx: on the device levels are coded by rans or at a fixed width");
  constexpr int threads = encode_chunk_threads;
  require_chunks(chunks, where);
  require_range("codec: log2_step", log2_step, -32768, 32767, where);
  scratch_parts parts{scratch, 0};
  const device_symbols symbols = take_symbols(parts, codec, chunks);
  quantise(exec, codec.quantizer, chunks, log2_step, symbols);
  const launch_shape shape{grid_of(chunks.count), threads};
  if constexpr (std::same_as<Q, dead_zone>) {
    launch(exec, shape, encode_steps_kernel<threads>, chunks, log2_step, symbols, row_bytes, results);
  } else {
    packing order = packing::components;
    if constexpr (std::same_as<E, fixed_width>) order = codec.entropy.order;
    launch(exec, shape, encode_groups_kernel<std::same_as<E, rans>, threads>, chunks, symbols, order, row_bytes, results);
    pack(exec, chunks, (32 * chunks.most_runs + 8 * chunks.most_components) * chunks.most_tokens, symbols, order, results);
  }
}

}  // namespace kvx
