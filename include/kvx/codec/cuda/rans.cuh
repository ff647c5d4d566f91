#pragma once
// rANS streams on the device, many a launch: the bytes and values of the host's.

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/codec/component_matrix.hpp>
#include <kvx/codec/cuda/rans_reader.cuh>
#include <kvx/codec/cuda/rans_writer.cuh>
#include <kvx/codec/rans.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// A stream to decode, or values to encode; all pointers are the device's.
///
/// bytes       on a multiple of 4
/// size        bytes of the stream; of the room for one
struct rans_decoding {
  symbol_model model;
  const std::byte* bytes = nullptr;
  std::int64_t size = 0;
  component_matrix<std::int16_t> values;
};
struct rans_encoding {
  symbol_model model;
  component_matrix<const std::int16_t> values;
  std::byte* bytes = nullptr;
  std::int64_t size = 0;
};

/// What became of a stream; `bytes` its length.
struct rans_result {
  status::code code = status::code::ok;
  std::int64_t bytes = 0;
};

/// Values as they are; see read_stream.
struct value_sink {
  component_matrix<std::int16_t> values;
  std::int16_t* out;

  __device__ __forceinline__ void begin(std::int64_t c) { out = values.component(c); }
  __device__ __forceinline__ void put(std::int32_t t, std::int32_t value) const { out[t] = static_cast<std::int16_t>(value); }
};

inline constexpr int rans_encode_threads = 256;

template <int Threads>
__global__ void __launch_bounds__(Threads) rans_decode_kernel(const rans_decoding* streams, rans_result* results) {
  static_assert(Threads == warp_lanes, "a block is a warp: so few streams spread over all multiprocessors");
  __shared__ std::uint32_t ring[ring_entries];
  const rans_decoding s = streams[blockIdx.x];
  const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return s.model.tables[s.model.table_of[c]]; };
  value_sink sink{s.values, nullptr};
  const bool there = on_4(s.bytes);
  const status::code code =
      there ? read_stream(s.bytes, s.size, s.model.components, s.values.tokens, alphabet_of, sink, ring) : status::code::unfit;
  if (threadIdx.x == 0) results[blockIdx.x] = {code, s.size};
}

template <int Threads>
__global__ void __launch_bounds__(Threads, 1) rans_encode_kernel(const rans_encoding* streams, rans_result* results) {
  __shared__ rans_writer_scratch<Threads> scratch;
  const rans_encoding s = streams[blockIdx.x];
  const auto alphabet_of = [&](std::int64_t c) -> const symbol_lookup& { return s.model.tables[s.model.table_of[c]]; };
  std::int64_t bytes = 0;
  const bool there = on_4(s.bytes);
  const status::code code = there ? write_stream(s.values, alphabet_of, s.bytes, s.size, scratch, bytes) : status::code::unfit;
  if (threadIdx.x == 0) results[blockIdx.x] = {code, bytes};
}

/// Decodes streams, a warp each.
///
/// shapes      streams, results (count) in device memory; values (components, tokens) of each stream's model and token count, of any pitch:
///             nothing beyond the tokens is written
/// exactness   the host's values
/// cost        one launch; 32 values of a stream one after the other, so a launch wants hundreds of streams; see read_stream
/// errors      in results: truncated, corrupt, and values hold garbage; unfit: bytes off a multiple of 4
inline void rans_decode(const device& exec, const rans_decoding* streams, std::int64_t count, rans_result* results,
                        call_site where = call_site::here()) {
  require_range("rans_decode: streams", count, 0, INT32_MAX, where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(count)), .threads = warp_lanes}, rans_decode_kernel<warp_lanes>, streams, results);
}

/// Encodes values, a block a stream.
///
/// shapes      streams, results (count) in device memory; rans_bound tells the room that always suffices
/// exactness   the host's bytes
/// cost        one launch; see write_stream
/// errors      in results: no_space, unfit; see write_stream
inline void rans_encode(const device& exec, const rans_encoding* streams, std::int64_t count, rans_result* results,
                        call_site where = call_site::here()) {
  require_range("rans_encode: streams", count, 0, INT32_MAX, where);
  launch(exec, {.grid = dim3(static_cast<unsigned>(count)), .threads = rans_encode_threads}, rans_encode_kernel<rans_encode_threads>,
         streams, results);
}

}  // namespace kvx
