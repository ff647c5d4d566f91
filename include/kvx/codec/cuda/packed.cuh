#pragma once
// Packed levels on the device: every word of them is put together by one thread, every level taken out by one.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/cuda/device_chunk.cuh>
#include <kvx/codec/cuda/quantize.cuh>
#include <kvx/codec/packed_places.hpp>
#include <kvx/codec/quantize.hpp>
#include <kvx/core/bits.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

inline constexpr int pack_threads = 128, unpack_threads = 256, unpack_each = 8;

KVX_HD constexpr std::uint32_t bits_of_range(const run_range& r) { return r.shift.bits | static_cast<std::uint32_t>(r.scale.bits) << 16; }

template <int Threads>
__global__ void __launch_bounds__(Threads)
    pack_kernel(device_chunks chunks, std::int64_t parts, device_symbols in, packing order, const chunk_result* results) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) / parts;
  const chunk_result result = results[number];
  if (result.code != status::code::ok || result.kind != chunk_kind::groups_fixed) return;
  const device_chunk chunk = chunks.list[number];
  const packed_places places = chunk.model->places(order, chunk.tokens);
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) % parts * Threads + static_cast<int>(threadIdx.x);
  if (32 * word >= places.bits()) return;
  const component_matrix<std::int16_t> levels = in.of(chunks, number, chunk);
  const run_range* const ranges = in.ranges_of(chunks, number);
  std::uint32_t bits = 0;
  int filled = 0;
  while (filled < 32 && 32 * word + filled < places.bits()) {
    const std::int64_t at = 32 * word + filled;
    const packed_item item = item_at(places, at);
    const packed_run run = places.runs[item.run];
    const bool is_range = item.component < 0;
    const std::uint32_t value = is_range ? bits_of_range(ranges[run.before * places.tokens + item.token])
                                         : static_cast<std::uint32_t>(levels.component(item.component)[item.token]);
    const int passed = static_cast<int>(at - item.at);
    bits |= value >> passed << filled;
    filled += (is_range ? 32 : run.bits) - passed;
  }
  std::byte* const to = chunk.bytes + sizeof(chunk_header) + 4 * word;
  const std::int64_t left = ceil_div(places.bits(), 8) - 4 * word;
  if (left >= 4) {
    *reinterpret_cast<std::uint32_t*>(to) = bits;
  } else {
    for (int i = 0; i < left; ++i) to[i] = static_cast<std::byte>(bits >> 8 * i & 255);
  }
}

/// Packs what quantise left behind the headers of those chunks whose results say so: groups_fixed.
///
/// shapes      most_bits no chunk has more packed bits
/// exactness   the host's bytes
/// cost        one launch; an item is found by a bisection over the runs
inline void pack(const device& exec, const device_chunks& chunks, std::int64_t most_bits, const device_symbols& in, packing order,
                 const chunk_result* results) {
  const std::int64_t parts = ceil_div(ceil_div(most_bits, 32), pack_threads);
  launch(exec, {grid_of(chunks.count * parts), pack_threads}, pack_kernel<pack_threads>, chunks, parts, in, order, results);
}

/// Up to 8 bits from a place on: no byte is read but those that hold them.
__device__ __forceinline__ std::uint32_t bits_at(const std::byte* packed, std::int64_t at, int bits) {
  const int passed = static_cast<int>(at % 8);
  auto x = static_cast<std::uint32_t>(packed[at / 8]);
  if (passed + bits > 8) x |= static_cast<std::uint32_t>(packed[at / 8 + 1]) << 8;
  return x >> passed & ((1u << bits) - 1);
}

/// 32 bits from a place on.
__device__ __forceinline__ run_range range_of_bits(const std::byte* packed, std::int64_t at) {
  std::uint32_t x = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) x |= bits_at(packed, at + 8 * i, 8) << 8 * i;
  run_range r;
  r.shift.bits = static_cast<std::uint16_t>(x & 0xffffu);
  r.scale.bits = static_cast<std::uint16_t>(x >> 16);
  return r;
}

template <int Threads>
__global__ void __launch_bounds__(Threads) unpack_kernel(device_chunks chunks, std::int64_t parts, const chunk_result* results) {
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) / parts, part = static_cast<std::int64_t>(blockIdx.x) % parts;
  const chunk_result result = results[number];
  if (result.code != status::code::ok || result.kind != chunk_kind::groups_fixed) return;
  const device_chunk chunk = chunks.list[number];
  const packed_places places = chunk.model->places(static_cast<packing>(chunk.bytes[1]), chunk.tokens);
  const std::byte* const packed = chunk.bytes + sizeof(chunk_header);
  const std::int64_t end = chunk.components * chunk.tokens;
#pragma unroll 2
  for (int i = 0; i < unpack_each; ++i) {
    const std::int64_t at = (part * unpack_each + i) * Threads + static_cast<int>(threadIdx.x);
    if (at >= end) break;
    const std::int64_t c = at / chunk.tokens, t = at % chunk.tokens;
    float x = 0;
    if (c < chunk.model->plan_components) {
      const packed_run run = places.runs[chunk.model->run_of[c]];
      if (run.bits > 0) {
        const auto level = static_cast<std::int32_t>(bits_at(packed, places.level_at(run, c, t), run.bits));
        x = value_of(level, range_of_bits(packed, places.range_at(run, t)));
      }
    }
    chunk.coefficients[c * chunk.pitch + t] = x;
  }
}

/// Coefficients of those chunks whose results say groups_fixed, and whose bytes have been checked.
///
/// exactness   the host's coefficients
/// cost        one launch; levels are read once, ranges once a level
inline void unpack(const device& exec, const device_chunks& chunks, const chunk_result* results) {
  const std::int64_t parts = ceil_div(chunks.most_components * chunks.most_tokens, unpack_threads * unpack_each);
  launch(exec, {grid_of(chunks.count * parts), unpack_threads}, unpack_kernel<unpack_threads>, chunks, parts, results);
}

}  // namespace kvx
