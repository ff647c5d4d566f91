#pragma once
// Chunks as kernels take them: where their bytes and coefficients lie, what became of them, and what their headers say.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/cuda/span_model.cuh>
#include <kvx/core/annotate.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// One chunk; all pointers are the device's. Chunks of a launch may be of different models.
///
/// bytes       on a multiple of 4
/// size        of the chunk; of the room for one
/// components  to be coded: what the step or the plan keeps. To decode: rows of coefficients that there is room for; those that the
///             chunk does not have become 0
/// coefficients (components, pitch): the first of its tokens' columns
/// factors     (tokens) powers of two that coefficients are multiplied by before they are coded; null: 1
struct device_chunk {
  const device_span_model* model = nullptr;
  std::byte* bytes = nullptr;
  std::int64_t size = 0;
  std::int32_t tokens = 0;
  std::int64_t components = 0;
  float* coefficients = nullptr;
  std::int64_t pitch = 0;
  const float* factors = nullptr;

  __device__ __forceinline__ float coefficient(std::int64_t c, std::int64_t t) const {
    const float x = coefficients[c * pitch + t];
    return factors != nullptr ? x * factors[t] : x;
  }
};

/// What became of a chunk; kind and bytes only where the code is ok.
struct chunk_result {
  status::code code = status::code::ok;
  chunk_kind kind = chunk_kind::rows;
  std::int64_t bytes = 0;
};

/// The chunks of a launch: a list in device memory, and bounds that the host plans with.
///
/// most_tokens, most_components, most_runs   no chunk has more; runs of a plan, those that are not stored included
struct device_chunks {
  const device_chunk* list = nullptr;
  std::int64_t count = 0;
  std::int64_t most_tokens = 0;
  std::int64_t most_components = 0;
  std::int64_t most_runs = 0;

  KVX_HD constexpr std::int64_t symbol_pitch_of() const { return symbol_pitch(static_cast<std::int32_t>(most_tokens)); }
};

inline void require_chunks(const device_chunks& chunks, call_site where) {
  require_range("codec: chunks", chunks.count, 0, 1 << 20, where);
  require_range("codec: tokens of a chunk", chunks.most_tokens, 0, 1 << 20, where);
  require_range("codec: components of a chunk", chunks.most_components, 0, INT32_MAX, where);
  require_range("codec: runs of a chunk", chunks.most_runs, 0, INT32_MAX, where);
  require(chunks.count == 0 || chunks.list != nullptr, "codec: the list of chunks is null", where);
}

/// The grid of so many blocks.
///
/// errors      usage_error: more than a launch has
inline dim3 grid_of(std::int64_t blocks, call_site where = call_site::here()) {
  require_range("codec: blocks of a launch", blocks, 0, INT32_MAX, where);
  return dim3(static_cast<unsigned>(blocks));
}

/// Components that a step keeps, by the lanes of a warp; see coded_components.
__device__ __forceinline__ std::int64_t warp_coded_components(const component_scale* scales, std::int64_t count, int log2_step) {
  for (std::int64_t end = count; end > 0; end -= warp_lanes) {
    const std::int64_t c = end - warp_lanes + lane_of_thread();
    const unsigned kept = __ballot_sync(all_lanes, c >= 0 && scales[c < 0 ? 0 : c].log2_scale - log2_step >= rank_cut);
    if (kept != 0) return end - __clz(static_cast<int>(kept));
  }
  return 0;
}

/// The header of a chunk, without a look beyond its bytes; the host's rules.
__device__ __forceinline__ status::code read_header(const device_chunk& chunk, chunk_header& header) {
  if (chunk.size < static_cast<std::int64_t>(sizeof header)) return status::code::truncated;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(chunk.bytes);
  const std::uint32_t first = words[0];
  header.components = words[1];
  header.log2_step = static_cast<std::int16_t>(first >> 16);
  const std::uint32_t kind = first & 255, order = first >> 8 & 255;
  if (kind > static_cast<std::uint32_t>(chunk_kind::groups_rans) || order > 1) return status::code::corrupt;
  header.kind = static_cast<chunk_kind>(kind);
  header.order = static_cast<std::uint8_t>(order);
  if (header.kind != chunk_kind::step_rans && header.log2_step != 0) return status::code::corrupt;
  if (header.kind == chunk_kind::rows && (header.order != 0 || header.components != 0)) return status::code::corrupt;
  return status::code::ok;
}

__device__ __forceinline__ void write_header(const device_chunk& chunk, const chunk_header& header) {
  auto* const words = reinterpret_cast<std::uint32_t*>(chunk.bytes);
  words[0] = static_cast<std::uint32_t>(header.kind) | static_cast<std::uint32_t>(header.order) << 8 |
             static_cast<std::uint32_t>(static_cast<std::uint16_t>(header.log2_step)) << 16;
  words[1] = header.components;
}

}  // namespace kvx
