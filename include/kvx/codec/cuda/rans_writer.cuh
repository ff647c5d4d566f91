#pragma once
// One interleaved rANS stream, encoded by one block: one warp holds the states, all find and write the escapes.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/codec/component_matrix.hpp>
#include <kvx/codec/cuda/lane_alphabet.cuh>
#include <kvx/codec/rans.hpp>
#include <kvx/core/status.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What quantisers leave where a coefficient has no symbol: such values are unfit.
inline constexpr std::int16_t no_symbol = -32768;

template <int Threads>
struct rans_writer_scratch {
  static constexpr int warps = Threads / warp_lanes;
  std::int64_t escapes[warps];
  std::int64_t words;
  int unfit[warps];   ///< a value that its alphabet has no escape for
  int beyond[warps];  ///< no_symbol
};

/// Values that come before in the order of the encoder, loaded some steps ahead.
class values_backwards {
 public:
  __device__ __forceinline__ values_backwards(const component_matrix<const std::int16_t>& values, std::int32_t steps)
      : values_(values), steps_(steps), component_(steps > 0 ? values.components - 1 : -1), step_(steps - 1) {
#pragma unroll
    for (auto& v : ahead_) v = load();
  }
  __device__ __forceinline__ std::int32_t next() {
    const std::int32_t value = ahead_[0];
#pragma unroll
    for (int i = 0; i + 1 < depth; ++i) ahead_[i] = ahead_[i + 1];
    ahead_[depth - 1] = load();
    return value;
  }

 private:
  static constexpr int depth = 3;

  __device__ __forceinline__ std::int32_t load() {
    const std::int32_t t = step_ * rans_lanes + lane_of_thread();
    const std::int32_t value = component_ >= 0 && t < values_.tokens ? values_.component(component_)[t] : 0;
    if (--step_ < 0) {
      step_ = steps_ - 1;
      --component_;
    }
    return value;
  }

  component_matrix<const std::int16_t> values_;
  std::int32_t steps_;
  std::int64_t component_;
  std::int32_t step_;
  std::int32_t ahead_[depth];
};

/// Codes all values from the last to the first by the lanes of a warp; the words end at word `end` and grow downwards.
///
/// returns     how many words there are, -1 where they are more than `most`
template <class AlphabetOf>
__device__ __forceinline__ std::int64_t put_values(const component_matrix<const std::int16_t>& values, const AlphabetOf& alphabet_of,
                                                   std::uint16_t* words, std::int64_t end, std::int64_t most, std::uint32_t& x) {
  const int lane = lane_of_thread();
  const unsigned below = (1u << lane) - 1;
  const auto steps = static_cast<std::int32_t>(symbol_pitch(values.tokens) / rans_lanes);
  std::int64_t used = 0;
  const auto give = [&](bool gives) {
    const unsigned all = __ballot_sync(all_lanes, gives);
    used += __popc(all);
    if (used > most) return false;
    if (gives) {
      words[end - used + __popc(all & below)] = static_cast<std::uint16_t>(x);
      x >>= 16;
    }
    return true;
  };
  values_backwards source(values, steps);
  lane_entry before;
  if (values.components > 0) before.load(alphabet_of(values.components - 1));
  for (std::int64_t c = values.components; c-- > 0;) {
    const lane_encoder encoder(before);
    if (c > 0) before.load(alphabet_of(c - 1));
    const int raw_bits = encoder.raw_bits();
    for (std::int32_t step = steps; step-- > 0;) {
      const bool active = step * rans_lanes + lane < values.tokens;
      const lane_encoder::symbol v = encoder.find(source.next());
      if (raw_bits > 0) {
        if (!give(active && x >> (32 - raw_bits) != 0)) return -1;
        if (active) x = x << raw_bits | v.raw;
      }
      if (!give(active && x >> (32 - rans_bits) >= v.frequency)) return -1;
      if (active) x = encoder.put(v, x);
    }
  }
  return used;
}

/// Words to the front: two a thread and turn, of which none is overwritten before it is read. All threads call.
template <int Threads>
__device__ __forceinline__ void move_words(std::uint16_t* words, std::int64_t from, std::int64_t count) {
  constexpr int each = 4;
  if (from == 0) return;
  for (std::int64_t first = 0; first < count; first += 2 * each * Threads) {
    std::uint32_t two[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const std::int64_t at = first + 2 * (i * Threads + static_cast<int>(threadIdx.x));
      two[i] = at < count ? words[from + at] : 0u;
      if (at + 1 < count) two[i] |= static_cast<std::uint32_t>(words[from + at + 1]) << 16;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const std::int64_t at = first + 2 * (i * Threads + static_cast<int>(threadIdx.x));
      if (at + 1 < count) {
        *reinterpret_cast<std::uint32_t*>(words + at) = two[i];
      } else if (at < count) {
        words[at] = static_cast<std::uint16_t>(two[i]);
      }
    }
  }
}

/// Encodes values by a block.
///
/// shapes      out from a multiple of 4 bytes on, `room` bytes; alphabet_of(c) is the symbol_lookup of component c. All threads call and
///             get the result; `bytes` 0 unless ok
/// exactness   the host's bytes
/// cost        one pass over the values by all warps to find escapes, one backwards by one warp; a third where there are escapes
/// errors      no_space: out holds garbage; unfit: a value that its alphabet has no escape for, or no_symbol
template <int Threads, class AlphabetOf>
__device__ __forceinline__ status::code write_stream(const component_matrix<const std::int16_t>& values, const AlphabetOf& alphabet_of,
                                                     std::byte* out, std::int64_t room, rans_writer_scratch<Threads>& s,
                                                     std::int64_t& bytes) {
  constexpr int warps = rans_writer_scratch<Threads>::warps;
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const std::int64_t C = values.components, first = C * warp / warps, last = C * (warp + 1) / warps;
  bytes = 0;
  std::int64_t mine = 0;
  bool unfit = false, beyond = false;
  for (std::int64_t c = first; c < last; ++c) {
    const symbol_lookup& table = alphabet_of(c);
    const std::int16_t* const v = values.component(c);
#pragma unroll 4
    for (std::int32_t t = lane; t < values.tokens; t += warp_lanes) {
      const symbol_of_value told = find_symbol(table, v[t]);
      beyond = beyond || v[t] == no_symbol;
      unfit = unfit || (told.escaped && table.escape >= alphabet_size);
      if (told.escaped) mine += escape_code(told.distance) < 255 ? 1 : 3;
    }
  }
  mine = warp_sum(mine);
  unfit = __any_sync(all_lanes, unfit) != 0;
  beyond = __any_sync(all_lanes, beyond) != 0;
  if (lane == 0) {
    s.escapes[warp] = mine;
    s.unfit[warp] = unfit ? 1 : 0;
    s.beyond[warp] = beyond ? 1 : 0;
  }
  __syncthreads();
  std::int64_t escapes = 0, before = 0;
  unfit = beyond = false;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += s.escapes[w];
    escapes += s.escapes[w];
    unfit = unfit || s.unfit[w] != 0;
    beyond = beyond || s.beyond[w] != 0;
  }
  const std::int32_t lanes = rans_lanes_of(C, values.tokens);
  const std::int64_t front = rans_header_bytes + 4 * lanes;
  if (beyond) return status::code::unfit;
  if (room < front) return status::code::no_space;
  if (unfit) return status::code::unfit;
  if (escapes > room - front) return status::code::no_space;
  auto* const words = reinterpret_cast<std::uint16_t*>(out + front);
  const std::int64_t end = (room - front) / 2;
  if (warp == 0) {
    std::uint32_t x = rans_least;
    const std::int64_t used = put_values(values, alphabet_of, words, end, (room - front - escapes) / 2, x);
    auto* const head = reinterpret_cast<std::uint32_t*>(out);
    if (used >= 0 && lane < lanes) head[2 + lane] = x;
    if (lane == 0) {
      if (used >= 0) head[0] = static_cast<std::uint32_t>(used);
      if (used >= 0) head[1] = static_cast<std::uint32_t>(escapes);
      s.words = used;
    }
  }
  __syncthreads();
  const std::int64_t used = s.words;
  if (used < 0) return status::code::no_space;
  move_words<Threads>(words, end - used, used);
  __syncthreads();
  bytes = front + 2 * used + escapes;
  if (s.escapes[warp] > 0) {
    std::byte* next = out + front + 2 * used + before;
    for (std::int64_t c = first; c < last; ++c) {
      const symbol_lookup& table = alphabet_of(c);
      for (std::int32_t t0 = 0; t0 < values.tokens; t0 += warp_lanes) {
        const std::int32_t t = t0 + lane;
        const symbol_of_value told = t < values.tokens ? find_symbol(table, values.component(c)[t]) : symbol_of_value{};
        if (__any_sync(all_lanes, told.escaped) == 0) continue;
        const std::uint32_t code = escape_code(told.distance);
        const int length = !told.escaped ? 0 : code < 255 ? 1 : 3, up_to_here = warp_inclusive_sum(length);
        std::byte* const to = next + up_to_here - length;
        if (length > 0) to[0] = static_cast<std::byte>(length == 1 ? code : 255);
        if (length > 1) to[1] = static_cast<std::byte>(code & 255);
        if (length > 1) to[2] = static_cast<std::byte>(code >> 8);
        next += __shfl_sync(all_lanes, up_to_here, warp_lanes - 1);
      }
    }
  }
  return status::code::ok;
}

}  // namespace kvx
