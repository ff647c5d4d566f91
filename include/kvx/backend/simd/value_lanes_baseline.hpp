#pragma once
// What value_kernels.hpp computes with on every processor: plain loops.

#include <kvx/backend/simd/value_table.hpp>

#include <cmath>
#include <cstdint>

namespace kvx::simd::baseline {

struct value_lanes {
  struct bytes {
    std::uint8_t x[value_chunk];
  };
  struct ints {
    std::int32_t x[8];
  };

  /// The first n bytes, zeros behind them.
  static bytes load(const std::uint8_t* p, int n) {
    bytes result{};
    for (int i = 0; i < n; ++i) result.x[i] = p[i];
    return result;
  }
  template <int Bits>
  static bytes field(bytes b, int f) {
    for (std::uint8_t& x : b.x) x = static_cast<std::uint8_t>(x >> f * Bits & ((1 << Bits) - 1));
    return b;
  }
  struct table {
    const std::int8_t* level;
    explicit table(const std::int8_t* levels) : level(levels) {}
    bytes look_up(bytes b) const {
      for (std::uint8_t& x : b.x) x = static_cast<std::uint8_t>(level[x]);
      return b;
    }
  };
  /// Vector j: bytes 4 j .. 4 j + 3 of each half, four tokens beside each other.
  static void beside(bytes* v) {
    bytes out[4];
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 8; ++i) {
        for (int t = 0; t < 4; ++t) out[j].x[4 * i + t] = v[t].x[i / 4 * 16 + 4 * j + i % 4];
      }
    }
    for (int j = 0; j < 4; ++j) v[j] = out[j];
  }
  /// The largest size of 32 weights, NaN left out; spoilt: 0, NaN where one is not finite.
  static float largest(const float* w, float& spoilt) {
    float most = 0;
    spoilt = 0;
    for (int t = 0; t < value_block; ++t) {
      const float x = w[t] < 0 ? -w[t] : w[t];
      most = x > most ? x : most;
      spoilt += w[t] * 0.0f;
    }
    return most;
  }
  /// Ties to even.
  static void scale(const float* w, float inverse, std::int8_t* whole) {
    for (int t = 0; t < value_block; ++t) {
      const float x = w[t] * inverse;
      whole[t] = static_cast<std::int8_t>(x > -128 && x < 128 ? std::nearbyint(x) : 0.0f);
    }
  }
  struct quad_weights {
    std::int8_t w[value_block];
    void set(const std::int8_t* whole) {
      for (int t = 0; t < value_block; ++t) w[t] = whole[t];
    }
    ints start() const { return {}; }
    ints add(ints sum, const bytes& x, int u) const {
      for (int i = 0; i < 8; ++i) {
        for (int t = 0; t < 4; ++t) sum.x[i] += static_cast<std::int8_t>(x.x[4 * i + t]) * w[4 * u + t];
      }
      return sum;
    }
  };
  static void accumulate(const ints& a, float unit, float* sums) {
    for (int i = 0; i < 8; ++i) sums[i] += static_cast<float>(a.x[i]) * unit;
  }
};

}  // namespace kvx::simd::baseline
