#pragma once
// One interleaved rANS stream, decoded by one warp: a lane a state.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/codec/cuda/lane_alphabet.cuh>
#include <kvx/codec/rans.hpp>
#include <kvx/core/status.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Whether a stream lies where kernels can read it.
__device__ __forceinline__ bool on_4(const void* p) { return (reinterpret_cast<std::uintptr_t>(p) & 3) == 0; }

/// Words of 16 bits that a warp has at hand in shared memory, two an entry.
inline constexpr int ring_entries = 128;

/// The words of a stream in pieces of 64: loaded two pieces before they enter the ring, and there before any lane can ask for them.
class word_ring {
 public:
  /// shapes      words from a multiple of 4 bytes on; ring (ring_entries) in shared memory, this warp's
  __device__ __forceinline__ word_ring(const std::byte* words, std::int64_t count, std::uint32_t* ring)
      : from_(reinterpret_cast<const std::uint32_t*>(words)), count_(count), ring_(ring) {
    first_ = piece();
    second_ = piece();
  }

  /// Makes 64 words ready, as many as a step takes; false where more were taken than there are. All lanes call.
  __device__ __forceinline__ bool before_step() {
    if (ready_ < 64) {
      __syncwarp();  // whose turn was before has read
      ring_[(entered_ + lane_of_thread()) % ring_entries] = first_;
      __syncwarp();
      entered_ += warp_lanes;
      ready_ += 64;
      first_ = second_;
      second_ = piece();
    }
    return taken_ <= count_;
  }

  /// States below 2^16 take in a word each, in the order of the lanes. All lanes call.
  __device__ __forceinline__ void refill(std::uint32_t& x) {
    const bool takes = x < rans_least;
    const unsigned all = __ballot_sync(all_lanes, takes);
    const auto at = static_cast<std::uint32_t>(taken_) + static_cast<std::uint32_t>(__popc(all & ((1u << lane_of_thread()) - 1)));
    if (takes) x = x << 16 | (ring_[at / 2 % ring_entries] >> at % 2 * 16 & 0xffffu);
    taken_ += __popc(all);
    ready_ -= __popc(all);
  }

  __device__ __forceinline__ bool all_taken() const { return taken_ == count_; }

 private:
  /// Two words of the next piece; zeros behind the last one.
  __device__ __forceinline__ std::uint32_t piece() {
    const std::int64_t entry = loaded_ + lane_of_thread();
    loaded_ += warp_lanes;
    if (2 * entry + 1 < count_) return from_[entry];
    return 2 * entry < count_ ? *reinterpret_cast<const std::uint16_t*>(from_ + entry) : 0u;
  }

  const std::uint32_t* from_;
  std::int64_t count_, taken_ = 0, loaded_ = 0;
  std::uint32_t* ring_;
  std::uint32_t first_ = 0, second_ = 0;
  int entered_ = 0, ready_ = 0;
};

/// Replaces the values of the lanes of a mask, which is not 0; false where the bytes end or tell a value beyond 16 bits. See take_escapes
/// of the host.
__device__ inline bool take_escapes(unsigned lanes_of, const lane_entry& e, const std::byte*& next, const std::byte* end,
                                    std::int32_t& value) {
  bool fits = true;
  for (; lanes_of != 0; lanes_of &= lanes_of - 1) {  // the same in all lanes
    if (next == end) return false;
    auto code = static_cast<std::int32_t>(*next++);
    if (code == 255) {
      if (end - next < 2) return false;
      code = static_cast<std::int32_t>(next[0]) | static_cast<std::int32_t>(next[1]) << 8;
      next += 2;
    }
    if (lane_of_thread() != __ffs(static_cast<int>(lanes_of)) - 1) continue;
    const std::int32_t symbol = middle_symbol + ((code & 1) != 0 ? -(code / 2) - 1 : code / 2);
    const std::int64_t told = value + (std::int64_t{symbol} - e.escape) * (std::int64_t{1} << e.raw_bits);
    fits = told <= 32767 && told >= -32767;
    value = fits ? static_cast<std::int32_t>(told) : 0;
  }
  return __all_sync(all_lanes, fits) != 0;
}

/// Decodes a stream by the lanes of a warp.
///
/// shapes      stream from a multiple of 4 bytes on; alphabet_of(c) is the symbol_lookup of component c; sink.begin(c) is called by all
///             lanes before the values of a component, sink.put(t, value) once a value, token t by lane t % 32
/// exactness   the host's values
/// cost        two shuffles, a vote and a look-up in shared memory one after the other for 32 values; words and alphabets are loaded ahead
/// errors      truncated, corrupt: never a read outside the stream, never a value beyond +-32,767, never more steps than values
template <class AlphabetOf, class Sink>
__device__ __forceinline__ status::code read_stream(const std::byte* stream, std::int64_t size, std::int64_t components,
                                                    std::int32_t tokens, const AlphabetOf& alphabet_of, Sink& sink, std::uint32_t* ring) {
  const int lane = lane_of_thread();
  const std::int32_t lanes = rans_lanes_of(components, tokens);
  const std::int64_t front = rans_header_bytes + 4 * lanes;
  if (size < front) return status::code::truncated;
  const auto* const head = reinterpret_cast<const std::uint32_t*>(stream);
  const std::int64_t words = head[0], expected = front + 2 * words + head[1];
  if (size != expected) return size < expected ? status::code::truncated : status::code::corrupt;
  std::uint32_t x = lane < lanes ? head[2 + lane] : rans_least;
  if (__any_sync(all_lanes, x < rans_least) != 0) return status::code::corrupt;
  word_ring source(stream + front, words, ring);
  const std::byte* escapes = stream + front + 2 * words;
  const std::byte* const end = stream + size;
  lane_entry next;
  if (components > 0) next.load(alphabet_of(0));
  for (std::int64_t c = 0; c < components; ++c) {
    const lane_entry e = next;
    const lane_decoder decoder(e);
    if (c + 1 < components) next.load(alphabet_of(c + 1));
    sink.begin(c);
    for (std::int32_t first = 0; first < tokens; first += rans_lanes) {
      const std::int32_t t = first + lane;
      const bool active = t < tokens;
      if (!source.before_step()) return status::code::corrupt;
      const std::uint32_t kept = x;
      const int symbol = decoder.take(x);
      if (!active) x = kept;
      source.refill(x);
      std::int32_t value = symbol;
      if (e.raw_bits > 0) {
        value = static_cast<std::int32_t>(static_cast<std::uint32_t>(symbol) << e.raw_bits | (x & ((1u << e.raw_bits) - 1)));
        if (active) x >>= e.raw_bits;
        source.refill(x);
      }
      value += e.offset;
      const unsigned escaped = __ballot_sync(all_lanes, active && symbol == e.escape);
      if (escaped != 0 && !take_escapes(escaped, e, escapes, end, value)) return status::code::corrupt;
      if (active) sink.put(t, value);
    }
  }
  const bool whole = __all_sync(all_lanes, x == rans_least) != 0 && source.all_taken() && escapes == end;
  return whole ? status::code::ok : status::code::corrupt;
}

}  // namespace kvx
