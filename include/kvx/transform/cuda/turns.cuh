#pragma once
// Rotary embeddings on the device: turns of some positions, and one channel of a key that is turned by them.

#include <kvx/backend/cuda/copy_in.cuh>
#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/transform/rope.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// rope_turns whose cosines and sines lie in device memory; trivially copyable. turns null: heads that are not turned.
///
/// shapes      turns (tokens, pairs, 2)
struct device_turns {
  rope_pairs pairs;
  double magnitude = 1;
  const float* turns = nullptr;
};

/// Channel d of a key that is turned forwards or back at token t; key(d) is a channel of it.
///
/// exactness   the bits of turn_key
template <class Key>
__device__ __forceinline__ float turned(const device_turns& of, std::int64_t t, int d, bool forwards, const Key& key) {
  const int partner = of.turns != nullptr ? of.pairs.partner(d) : d, half_of = of.pairs.dims / 2;
  if (partner == d) return key(d);
  const int first = d < partner ? d : partner, second = d < partner ? partner : d;
  const int pair = of.pairs.channels == rope_pairs::order::interleaved ? first / 2 : first;
  const float* const turn = of.turns + 2 * (t * half_of + pair);
  float a = key(first), b = key(second);
  turn_pair(a, b, turn[0], forwards ? turn[1] : -turn[1], forwards ? of.magnitude : 1 / of.magnitude);
  return d == first ? a : b;
}

/// Turns in device memory. Moves.
///
/// cost        waits for its copy: not for a stream that is captured
class turns_on_device {
 public:
  turns_on_device() = default;
  turns_on_device(const device& exec, const rope_turns& turns, call_site where = call_site::here())
      : pairs_(turns.pairs()), magnitude_(turns.magnitude()) {
    const std::int64_t bytes = turns.tokens() * (pairs_.dims / 2) * 2 * static_cast<std::int64_t>(sizeof(float));
    memory_ = allocate(exec, bytes);
    copy_in_and_wait(exec, memory_.data(), turns.of(0), bytes, where);
  }
  device_turns view() const { return {pairs_, magnitude_, reinterpret_cast<const float*>(memory_.data())}; }

 private:
  rope_pairs pairs_;
  double magnitude_ = 1;
  device_block memory_;
};

}  // namespace kvx
