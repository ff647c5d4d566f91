#pragma once
// Vectors of four floats in the compiler's own vector type: every processor, no intrinsics.

#include <kvx/backend/simd/level.hpp>
#include <kvx/core/element.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace kvx::simd::baseline {

struct lanes {
  static constexpr instruction_set set_name = instruction_set::baseline;
  static constexpr int width = 4;
  static constexpr int most_queries = 1;  // queries that share one pass over the rows: one variant, short to compile
  static constexpr int panel_step = 4;  // keys at a time in panel kernels
  static constexpr int tokens(int) { return 2; }
  static constexpr int chunks(int) { return 1; }

  using f [[gnu::vector_size(16)]] = float;
  using i [[gnu::vector_size(16)]] = std::int32_t;
  using mask = i;

  static f load(const float* p) {
    f x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, f x) { std::memcpy(p, &x, sizeof x); }
  static f set(float x) { return f{x, x, x, x}; }
  static f add(f a, f b) { return a + b; }
  static f sub(f a, f b) { return a - b; }
  static f mul(f a, f b) { return a * b; }
  static f div(f a, f b) { return a / b; }
  static f fma(f a, f b, f c) { return a * b + c; }
  static mask less(f a, f b) { return a < b; }
  static f select(mask m, f a, f b) { return reinterpret_cast<f>((m & reinterpret_cast<i>(a)) | (~m & reinterpret_cast<i>(b))); }
  static f max(f a, f b) { return select(b < a, a, b); }  // b if one is NaN
  static f round(f x) { return (x + set(0x1.8p23f)) - set(0x1.8p23f); }
  static f scale(f x, f n) {  // x * 2^n, n whole, -126 <= n <= 127
    const i bits = reinterpret_cast<i>(n + set(0x1.8p23f)) - reinterpret_cast<i>(set(0x1.8p23f));
    return x * reinterpret_cast<f>((bits + 127) << 23);
  }
  static float sum(f x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float largest(f x) {
    float m = x[0];
    for (int j = 1; j < 4; ++j) m = x[j] > m ? x[j] : m;
    return m;
  }
  static void sum4(f a, f b, f c, f d, float* out) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
  }
};

/// 2 * width elements of a row as two vectors in lane order; `n` of them for the last ones of a row.
template <class E>
struct chunk {
  struct tail {
    int n;
    explicit tail(int count) : n(count) {}
  };
  static void load(const E* p, lanes::f& a, lanes::f& b) {
    if constexpr (std::same_as<E, bf16> && std::endian::native == std::endian::little) {
      lanes::i pairs;
      std::memcpy(&pairs, p, sizeof pairs);
      a = reinterpret_cast<lanes::f>(pairs << 16);
      b = reinterpret_cast<lanes::f>(pairs & ~0xffff);
    } else {
      load(p, tail(8), a, b);
    }
  }
  static void load(const E* p, const tail& rest, lanes::f& a, lanes::f& b) {
    float x[8] = {};
    for (int j = 0; j < rest.n; ++j) {
      if constexpr (std::same_as<E, bf16>) {
        x[j % 2 * 4 + j / 2] = to_float(p[j]);
      } else {
        x[j] = to_float(p[j]);
      }
    }
    a = lanes::load(x);
    b = lanes::load(x + 4);
  }
};

/// Conversions in natural order.
template <class E>
inline void widen(const E* p, int n, float* out) {
  for (int j = 0; j < n; ++j) out[j] = to_float(p[j]);
}
template <class E>
inline void narrow(const float* p, int n, E* out) {
  for (int j = 0; j < n; ++j) out[j] = round_to<E>(p[j]);
}

}  // namespace kvx::simd::baseline
