#pragma once
// What encoding needs beyond lanes, for four keys side by side: every processor, no intrinsics.

#include <kvx/backend/simd/lanes_baseline.hpp>

#include <cstdint>
#include <cstring>

namespace kvx::simd::baseline {

struct encode_lanes {
  static constexpr int radix = 8;  // elements of a Hadamard pass in registers
  using f = lanes::f;
  using i = lanes::i;
  using mask = lanes::i;

  /// x, rounded: see rounded_product.
  [[gnu::always_inline]] static inline f rounded(f x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
  }
  static f flip(f x, f sign) { return reinterpret_cast<f>(reinterpret_cast<i>(x) ^ reinterpret_cast<i>(sign)); }
  static f absolute(f x) { return reinterpret_cast<f>(reinterpret_cast<i>(x) & 0x7fffffff); }
  static mask reaches(f x, f y) { return x >= y; }
  static i none() { return i{}; }
  static i add_where(mask m, i x, int step) { return x + (m & step); }
  static i either(i x, i y) { return x | y; }
  static i up(i x, int bits) { return x << bits; }
  static i down(i x, int bits) { return x >> bits; }  // of numbers that are not negative
  static i both(i x, int bits) { return x & bits; }
  static i times(i x, int y) { return x * y; }
  static void store(float* p, i x) { std::memcpy(p, &x, sizeof x); }

  /// Eight floats or integers, looked up by numbers below 8.
  struct floats8 {
    const float* p;
    explicit floats8(const float* first) : p(first) {}
    f operator[](i at) const { return gather(p, at); }
  };
  struct ints8 {
    const std::int32_t* p;
    explicit ints8(const std::int32_t* first) : p(first) {}
    i operator[](i at) const { return i{p[at[0]], p[at[1]], p[at[2]], p[at[3]]}; }
  };
  static f gather(const float* p, i at) { return f{p[at[0]], p[at[1]], p[at[2]], p[at[3]]}; }

  /// out[j][t] = in[t][j]: in (4, 4) dense, out rows `pitch` floats apart.
  static void transpose(const float* in, float* out, std::int64_t pitch) {
    for (int j = 0; j < 4; ++j) lanes::store(out + j * pitch, f{in[j], in[4 + j], in[8 + j], in[12 + j]});
  }

  /// Byte `byte` of each of n <= 4 integers, stored by store.
  static void store_bytes(const float* p, int byte, int n, std::uint8_t* out) {
    std::uint32_t x[4];
    std::memcpy(x, p, sizeof x);
    for (int j = 0; j < n; ++j) out[j] = static_cast<std::uint8_t>(x[j] >> 8 * byte);
  }
};

}  // namespace kvx::simd::baseline
