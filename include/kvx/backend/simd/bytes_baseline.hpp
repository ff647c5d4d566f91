#pragma once
// Vectors of 64 bytes as plain loops, short to compile: every processor, no intrinsics.

#include <kvx/core/element.hpp>
#include <kvx/core/word_of.hpp>

#include <cstdint>
#include <cstring>

namespace kvx::simd::baseline {

/// See bytes_avx2.hpp.
struct bytes {
  static constexpr int width = 64;

  struct b {
    std::uint8_t x[width];
  };
  struct w {
    std::int16_t x[width / 2];
  };
  struct entries {
    std::uint8_t x[16];
  };

  template <class F>
  static b each(F f) {
    b r;
    for (int i = 0; i < width; ++i) r.x[i] = static_cast<std::uint8_t>(f(i));
    return r;
  }
  template <class F>
  static w each_word(F f) {
    w r;
    for (int i = 0; i < width / 2; ++i) {
      const std::int32_t v = f(i);
      r.x[i] = static_cast<std::int16_t>(v > 32767 ? 32767 : v < -32768 ? -32768 : v);
    }
    return r;
  }

  static b load(const std::uint8_t* p) {
    b r;
    std::memcpy(r.x, p, width);
    return r;
  }
  static void store(std::uint8_t* p, b x) { std::memcpy(p, x.x, width); }
  static b set(std::uint8_t v) {
    return each([&](int) { return v; });
  }
  static w set_words(std::int16_t v) {
    return each_word([&](int) { return v; });
  }
  static entries table(const std::uint8_t* p) {
    entries r;
    std::memcpy(r.x, p, 16);
    return r;
  }
  static b look_up(const entries& t, const b& i) {
    return each([&](int j) { return i.x[j] < 128 ? t.x[i.x[j] & 15] : 0; });
  }
  static b low_bits(const b& x) {
    return each([&](int j) { return x.x[j] & 15; });
  }
  static b high_bits(const b& x) {
    return each([&](int j) { return x.x[j] >> 4; });
  }
  template <int N>
  static b shift_right(const b& x) {
    return each([&](int j) { return x.x[j] >> N; });
  }
  static b bits_and(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] & y.x[j]; });
  }
  static b bits_xor(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] ^ y.x[j]; });
  }
  static b add(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] + y.x[j]; });
  }
  static b minus_at_least_0(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] > y.x[j] ? x.x[j] - y.x[j] : 0; });
  }
  static b smaller(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] < y.x[j] ? x.x[j] : y.x[j]; });
  }
  static b larger(const b& x, const b& y) {
    return each([&](int j) { return x.x[j] > y.x[j] ? x.x[j] : y.x[j]; });
  }
  static b zero_where_zero(const b& x, const b& y) {
    return each([&](int j) { return y.x[j] != 0 ? x.x[j] : 0; });
  }
  static b count(const b& sum, const b& x, const b& y, const b& bit) {
    return each([&](int j) { return sum.x[j] + (((x.x[j] | y.x[j]) & bit.x[j]) != 0 ? 1 : 0); });
  }
  static w first_words(const b& y, const b& x) {
    return each_word([&](int j) { return static_cast<std::int16_t>(x.x[j] << 8 | y.x[j]); });
  }
  static w second_words(const b& y, const b& x) {
    return each_word([&](int j) { return static_cast<std::int16_t>(x.x[j + width / 2] << 8 | y.x[j + width / 2]); });
  }
  static w add_words(const w& x, const w& y) {
    return each_word([&](int j) { return x.x[j] + y.x[j]; });
  }
  static w subtract_words(const w& x, const w& y) {
    return each_word([&](int j) { return x.x[j] - y.x[j]; });
  }
  static w larger_words(const w& x, const w& y) {
    return each_word([&](int j) { return x.x[j] > y.x[j] ? x.x[j] : y.x[j]; });
  }
  static w times_4(const w& x) {
    return each_word([&](int j) { return static_cast<std::int16_t>(x.x[j] * 4); });
  }
  static w shift_words(const w& x, int n) {
    return each_word([&](int j) { return static_cast<std::int16_t>(static_cast<std::uint16_t>(x.x[j]) >> n); });
  }
  static w multiply(const w& x, const w& y) {
    return each_word([&](int j) { return (x.x[j] * y.x[j] + 0x4000) >> 15; });
  }
  static w multiply_high(const w& x, const w& y) {
    return each_word([&](int j) {
      const std::uint32_t product = std::uint32_t{static_cast<std::uint16_t>(x.x[j])} * static_cast<std::uint16_t>(y.x[j]);
      return static_cast<std::int16_t>(product >> 16);
    });
  }
  using words [[gnu::vector_size(16)]] = std::int16_t;
  using ints [[gnu::vector_size(16)]] = std::int32_t;
  template <class V>
  static V part(const void* p, int j) {
    V v;
    std::memcpy(&v, static_cast<const char*>(p) + 16 * j, 16);
    return v;
  }
  struct i {
    ints x[width / 16];
  };
  static b set_quads(std::int32_t four) {
    b r;
    for (int j = 0; j < width; j += 4) std::memcpy(r.x + j, &four, 4);
    return r;
  }
  static w products(const b& x, const b& y) {
    w r;
    for (int j = 0; j < width / 16; ++j) {
      const words n = part<words>(x.x, j), q = part<words>(y.x, j);  // in every word two bytes
      const words sum = (n & 255) * (q << 8 >> 8) + (n >> 8 & 255) * (q >> 8);
      std::memcpy(r.x + 8 * j, &sum, 16);
    }
    return r;
  }
  static w plus(const w& x, const w& y) {
    w r;
    for (int j = 0; j < width / 16; ++j) {
      const words sum = part<words>(x.x, j) + part<words>(y.x, j);
      std::memcpy(r.x + 8 * j, &sum, 16);
    }
    return r;
  }
  static i no_ints() { return {}; }
  static i add_ints(const i& x, const i& y) {
    i r;
    for (int j = 0; j < width / 16; ++j) r.x[j] = x.x[j] + y.x[j];
    return r;
  }
  static i pairs(const w& x) {
    i r;
    for (int j = 0; j < width / 16; ++j) {
      const ints two = part<ints>(x.x, j);
      r.x[j] = (two << 16 >> 16) + (two >> 16);
    }
    return r;
  }
  static void store_scaled(const i& x, float unit, float* out) {
    for (int j = 0; j < width / 4; ++j) {
      const int value = x.x[j / 4][j % 4];
      out[j] = static_cast<float>(value) * unit;
    }
  }
  static b clamp(const w& first, const w& second) {
    return each([&](int j) {
      const int v = j < width / 2 ? first.x[j] : second.x[j - width / 2];
      return v < 0 ? 0 : v > 255 ? 255 : v;
    });
  }

  static void compare(const std::uint8_t* scores, std::uint8_t level, std::uint64_t& above, std::uint64_t& equal) {
    above = equal = 0;
    for (int t = 0; t < 64; ++t) {
      above |= std::uint64_t{scores[t] > level} << t;
      equal |= std::uint64_t{scores[t] == level} << t;
    }
  }
  static std::int32_t* write(std::uint64_t taken, std::int32_t first, std::int32_t* out) {
    for (; taken != 0; taken &= taken - 1) *out++ = first + __builtin_ctzll(taken);
    return out;
  }
};

/// Four words from doubles.
struct word_lanes {
  static void four(const float* dots, const double* scales, const double* offsets, std::int16_t* words) {
    for (int g = 0; g < 4; ++g) words[g] = word_of(scales[g] * static_cast<double>(dots[g]) + offsets[g]);
  }
};

/// Sixteen float lanes of the page dots.
struct dot_lanes {
  float x[16];
  void clear() {
    for (float& v : x) v = 0;
  }
  void add_products(const dot_lanes& y, const float* q) {
    for (int j = 0; j < 16; ++j) x[j] += y.x[j] * q[j];
  }
  static dot_lanes load(const bf16* p) {
    dot_lanes r;
    for (int j = 0; j < 16; ++j) r.x[j] = to_float(p[j]);
    return r;
  }
  static void sum4(const dot_lanes* x, float* sums) {
    for (int g = 0; g < 4; ++g) sums[g] = x[g].sum();
  }
  float sum() const {
    float s[8];
    for (int j = 0; j < 8; ++j) s[j] = x[j] + x[j + 8];
    for (int j = 0; j < 4; ++j) s[j] += s[j + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
  }
};

}  // namespace kvx::simd::baseline
