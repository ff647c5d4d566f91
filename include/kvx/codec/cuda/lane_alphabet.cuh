#pragma once
// The alphabet of a component spread over the lanes of a warp: tables that lanes look up in each other, without shared memory.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/codec/symbol_table.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Entry lane % 16 of each table of a symbol_lookup, and its scalars; a load that nothing waits for before `looked_up_by`.
struct lane_entry {
  std::uint32_t bucket = 0;
  std::uint32_t frequency = 0;
  std::int32_t offset = 0;
  int escape = 255;
  int raw_bits = 0;

  __device__ __forceinline__ void load(const symbol_lookup& table) {
    const int entry = lane_of_thread() % alphabet_size;
    bucket = table.buckets[entry];
    frequency = table.frequencies[entry];
    offset = table.offset;
    escape = table.escape;
    raw_bits = table.raw_bits;
  }
};

/// take_symbol with both look-ups side by side: a bucket's entry comes with the frequencies of both its symbols.
class lane_decoder {
 public:
  __device__ __forceinline__ explicit lane_decoder(const lane_entry& e)
      : bucket_(e.bucket), frequencies_(e.frequency | __shfl_sync(all_lanes, e.frequency, static_cast<int>(e.bucket >> 8 & 15)) << 16) {}

  /// The symbol of state x, and what x is without it. All lanes call.
  __device__ __forceinline__ int take(std::uint32_t& x) const {
    const std::uint32_t slot = x & ((1u << rans_bits) - 1), low = slot & 255;
    const std::uint32_t bucket = __shfl_sync(all_lanes, bucket_, static_cast<int>(slot >> 8));
    const std::uint32_t both = __shfl_sync(all_lanes, frequencies_, static_cast<int>(slot >> 8));
    const bool aliased = low >= (bucket & 255);
    const std::uint32_t shift = aliased ? static_cast<std::uint32_t>(static_cast<std::int32_t>(bucket) >> 16) : 0;
    x = (aliased ? both >> 16 : both & 0xffffu) * (x >> rans_bits) + low + shift;
    return static_cast<int>(aliased ? bucket >> 8 & 15 : slot >> 8);
  }

 private:
  std::uint32_t bucket_;       // of bucket lane % 16
  std::uint32_t frequencies_;  // of the bucket's own symbol, in the upper half of its alias
};

/// find_symbol and put_symbol: the slot of a symbol's place is sought among the sixteen buckets, so that no table of 4,096 slots is needed.
class lane_encoder {
 public:
  __device__ __forceinline__ lane_encoder(const lane_entry& e)
      : e_(e), escape_frequency_(__shfl_sync(all_lanes, e.frequency, e.escape & 15)) {
#pragma unroll
    for (int b = 0; b < alphabet_size; ++b) buckets_[b] = __shfl_sync(all_lanes, e.bucket, b);
  }

  struct symbol {
    int s = 0;
    std::uint32_t frequency = 1;
    std::uint32_t raw = 0;
  };

  /// How a value is told; one that has no symbol is the escape. All lanes call.
  __device__ __forceinline__ symbol find(std::int32_t value) const {
    const std::int32_t from_lowest = value - e_.offset;
    symbol r;
    r.s = from_lowest >> e_.raw_bits;
    r.raw = static_cast<std::uint32_t>(from_lowest) & ((1u << e_.raw_bits) - 1);
    r.frequency = __shfl_sync(all_lanes, e_.frequency, r.s & 15);
    if (r.s < 0 || r.s >= alphabet_size || r.s == e_.escape || r.frequency == 0) {
      r.s = e_.escape;
      r.frequency = escape_frequency_;
    }
    return r;
  }

  /// Takes a symbol into a state that need not give away a word. A symbol's slots are first those of its own bucket, then those that it has
  /// in others, ascending.
  __device__ __forceinline__ std::uint32_t put(const symbol& v, std::uint32_t x) const {
    const std::uint32_t quotient = x / v.frequency;
    const auto place = static_cast<std::int32_t>(x - quotient * v.frequency);
    std::int32_t slot = 256 * v.s + place;
#pragma unroll
    for (int b = alphabet_size; b-- > 0;) {
      const std::int32_t shift = static_cast<std::int32_t>(buckets_[b]) >> 16, divider = static_cast<std::int32_t>(buckets_[b] & 255);
      const bool its = static_cast<int>(buckets_[b] >> 8 & 15) == v.s && place >= divider + shift && place < 256 + shift;
      if (its) slot = 256 * b + place - shift;
    }
    return (quotient << rans_bits) + static_cast<std::uint32_t>(slot);
  }

  __device__ __forceinline__ int raw_bits() const { return e_.raw_bits; }

 private:
  lane_entry e_;
  std::uint32_t escape_frequency_;
  std::uint32_t buckets_[alphabet_size];  // the same in all lanes
};

}  // namespace kvx
