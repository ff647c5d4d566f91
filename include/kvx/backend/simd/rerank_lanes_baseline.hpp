#pragma once
// What rerank_kernels.hpp computes with on every processor: plain loops.

#include <kvx/backend/simd/lanes_baseline.hpp>
#include <kvx/backend/simd/rerank_table.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/quick_exp.hpp>
#include <kvx/core/rounded.hpp>

#include <cstdint>

namespace kvx::simd::baseline {

/// a * b + c, rounded once. a a whole number up to 2^16 and b a half, so the product is exact; with c, a sum of such products, it is a
/// multiple of 2^-24, so below 2^29 the double sum is exact too.
inline float fused(float a, float b, float c) {
  const double sum = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
  return sum < 0x1p29 && sum > -0x1p29 ? static_cast<float>(sum) : __builtin_fmaf(a, b, c);
}

/// Chunks of 64 coordinates of a code, and the 16 quads that they make.
struct code_lanes {
  struct floats {
    float x[16];
  };
  struct ints {
    std::int32_t x[16];
  };
  struct chunk {
    std::int8_t x[code_chunk];
  };
  struct signed_chunk {
    std::int8_t x[code_chunk];
    signed_chunk(const chunk& v, std::uint64_t positive) {
      for (int j = 0; j < code_chunk; ++j) x[j] = static_cast<std::int8_t>((positive >> j & 1) != 0 ? v.x[j] : -v.x[j]);
    }
  };
  /// What the sums of a chunk of a query start from: nothing.
  struct start {};
  static start start_of(const std::int8_t*) { return {}; }

  template <int Bits>
  struct table {
    const std::uint8_t* level;
    explicit table(const std::uint8_t* levels) : level(levels) {}
  };

  template <int Bits>
  static chunk levels_of(const table<Bits>& t, const std::uint64_t* planes) {
    chunk v;
    for (int j = 0; j < code_chunk; ++j) {
      unsigned index = 0;
      for (int p = 0; p < Bits; ++p) index |= static_cast<unsigned>(planes[p] >> j & 1) << p;
      v.x[j] = static_cast<std::int8_t>(t.level[index]);
    }
    return v;
  }
  /// The first n coordinates of a, the others of b.
  static chunk join(chunk a, const chunk& b, int n) {
    for (int j = n; j < code_chunk; ++j) a.x[j] = b.x[j];
    return a;
  }
  static ints quads(const signed_chunk& v, const std::int8_t* q, start) {
    ints result{};
    for (int j = 0; j < code_chunk; ++j) result.x[j / 4] += v.x[j] * q[j];
    return result;
  }

  template <int Times>
  static floats repeat(const half* w) {
    floats result;
    for (int j = 0; j < 16; ++j) result.x[j] = to_float(w[j / Times]);
    return result;
  }
  static floats once(const half* w) { return repeat<1>(w); }
  static floats twice(const half* w) { return repeat<2>(w); }
  static floats four_times(const half* w) { return repeat<4>(w); }
  static float one(const half* w) { return to_float(*w); }

  struct total {
    float x[16];
    std::int32_t whole;
    void clear() { *this = {}; }
    void add(const ints& y) {
      for (int j = 0; j < 16; ++j) whole += y.x[j];
    }
    void add(const ints& y, const floats& w) {
      for (int j = 0; j < 16; ++j) x[j] = fused(static_cast<float>(y.x[j]), w.x[j], x[j]);
    }
  };
  template <int Q>
  static void reduce_whole(const total* t, float* out) {
    for (int g = 0; g < Q; ++g) out[g] = static_cast<float>(t[g].whole);
  }
  template <int Q>
  static void reduce(const total* t, float* out) {
    for (int g = 0; g < Q; ++g) {
      float group[4];
      for (int i = 0; i < 4; ++i) group[i] = (t[g].x[4 * i] + t[g].x[4 * i + 2]) + (t[g].x[4 * i + 1] + t[g].x[4 * i + 3]);
      out[g] = (group[0] + group[2]) + (group[1] + group[3]);
    }
  }
};

/// Comparisons of floats as bits.
struct float_bits {
  static std::uint32_t at_least(const float* x, lanes::f level) {
    std::uint32_t bits = 0;
    for (int j = 0; j < lanes::width; ++j) bits |= (x[j] >= level[j] ? 1u : 0u) << j;
    return bits;
  }
  static std::int32_t* write(std::uint32_t bits, std::int32_t first, std::int32_t* out) {
    for (; bits != 0; bits &= bits - 1) *out++ = first + __builtin_ctz(bits);
    return out;
  }
};

/// One double at a time.
struct double_lanes {
  static constexpr int width = 1;
  using d = double;
  using count = std::int64_t;

  static d set(double x) { return x; }
  static d multiply_add(d a, d b, d c) { return a * b + c; }  // of products that are exact
  static d one_vector(const float* p) { return static_cast<double>(*p); }
  static void narrow(d x, float* p) { *p = static_cast<float>(x); }
  static count none() { return 0; }
  static std::int64_t whole(count c) { return c; }
  static count add_fixed_point(d x, count sum) { return x > 0 ? sum + fixed_point(static_cast<float>(x)) : sum; }
};

}  // namespace kvx::simd::baseline
