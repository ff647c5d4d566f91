// What rerank_kernels.hpp computes with under AVX2, FMA, F16C. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

/// Chunks of 64 coordinates of a code as two vectors of bytes, and the 16 quads that they make as two vectors of eight.
struct code_lanes {
  struct floats {
    __m256 low, high;
  };
  struct ints {
    __m256i low, high;
  };
  struct chunk {
    __m256i low, high;
  };

  /// 32 bits as 32 bytes: ones where the bit is set.
  [[gnu::always_inline]] static inline __m256i spread(std::uint32_t bits) {
    const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
    const __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), place);
    return _mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit);
  }

  template <int Bits>
  struct table {
    static constexpr int parts = Bits > 4 ? 1 << (Bits - 4) : 1;
    __m256i part[parts];
    [[gnu::always_inline]] explicit inline table(const std::uint8_t* levels) {
#pragma GCC unroll 8
      for (int j = 0; j < parts; ++j)
        part[j] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + 16 * j)));
    }
  };

  template <int Bits>
  [[gnu::always_inline]] static inline __m256i look_up(const table<Bits>& t, const std::uint64_t* planes, int shift) {
    __m256i index = _mm256_and_si256(spread(static_cast<std::uint32_t>(planes[0] >> shift)), _mm256_set1_epi8(1));
#pragma GCC unroll 8
    for (int p = 1; p < (Bits < 4 ? Bits : 4); ++p) {
      index = _mm256_or_si256(
          index, _mm256_and_si256(spread(static_cast<std::uint32_t>(planes[p] >> shift)), _mm256_set1_epi8(static_cast<char>(1 << p))));
    }
    __m256i level = _mm256_shuffle_epi8(t.part[0], index);
    if constexpr (Bits > 4) {
#pragma GCC unroll 8
      for (int j = 1; j < table<Bits>::parts; ++j) {
        std::uint64_t here = ~std::uint64_t{0};
#pragma GCC unroll 8
        for (int p = 4; p < Bits; ++p) here &= (j >> (p - 4) & 1) != 0 ? planes[p] : ~planes[p];
        level = _mm256_blendv_epi8(level, _mm256_shuffle_epi8(t.part[j], index), spread(static_cast<std::uint32_t>(here >> shift)));
      }
    }
    return level;
  }
  template <int Bits>
  [[gnu::always_inline]] static inline chunk levels_of(const table<Bits>& t, const std::uint64_t* planes) {
    return {look_up(t, planes, 0), look_up(t, planes, 32)};
  }
  /// The first n coordinates of a, the others of b.
  [[gnu::always_inline]] static inline chunk join(chunk a, chunk b, int n) {
    const std::uint64_t first = (std::uint64_t{1} << n) - 1;
    return {_mm256_blendv_epi8(b.low, a.low, spread(static_cast<std::uint32_t>(first))),
            _mm256_blendv_epi8(b.high, a.high, spread(static_cast<std::uint32_t>(first >> 32)))};
  }
  /// Levels, and 1 where a coordinate is positive, -1 where it is not: what _mm256_sign_epi8 takes.
  struct signed_chunk {
    chunk level, sign;
    [[gnu::always_inline]] inline signed_chunk(chunk v, std::uint64_t positive)
        : level(v), sign{of(static_cast<std::uint32_t>(positive)), of(static_cast<std::uint32_t>(positive >> 32))} {}
    [[gnu::always_inline]] static inline __m256i of(std::uint32_t bits) { return _mm256_or_si256(spread(~bits), _mm256_set1_epi8(1)); }
  };
  /// What the sums of a chunk of a query start from: nothing.
  struct start {};
  [[gnu::always_inline]] static inline start start_of(const std::int8_t*) { return {}; }
  [[gnu::always_inline]] static inline __m256i quad(__m256i v, __m256i sign, const std::int8_t* q) {
    const __m256i x = _mm256_sign_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)), sign);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(v, x), _mm256_set1_epi16(1));  // pairs: at most 2 * 127 * 127, no saturation
  }
  [[gnu::always_inline]] static inline ints quads(const signed_chunk& x, const std::int8_t* q, start) {
    return {quad(x.level.low, x.sign.low, q), quad(x.level.high, x.sign.high, q + 32)};
  }

  [[gnu::always_inline]] static inline floats once(const half* w) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 8)))};
  }
  [[gnu::always_inline]] static inline floats twice(const half* w) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
    return {_mm256_cvtph_ps(_mm_unpacklo_epi16(x, x)), _mm256_cvtph_ps(_mm_unpackhi_epi16(x, x))};
  }
  [[gnu::always_inline]] static inline floats four_times(const half* w) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w));
    const __m128i y = _mm_unpacklo_epi16(x, x);
    return {_mm256_cvtph_ps(_mm_unpacklo_epi32(y, y)), _mm256_cvtph_ps(_mm_unpackhi_epi32(y, y))};
  }
  [[gnu::always_inline]] static inline float one(const half* w) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*reinterpret_cast<const unsigned short*>(w))));
  }

  struct total {
    __m256 low, high;
    __m256i whole;
    [[gnu::always_inline]] inline void clear() {
      low = high = _mm256_setzero_ps();
      whole = _mm256_setzero_si256();
    }
    [[gnu::always_inline]] inline void add(ints y) { whole = _mm256_add_epi32(whole, _mm256_add_epi32(y.low, y.high)); }
    [[gnu::always_inline]] inline void add(ints y, floats w) {
      low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(y.low), w.low, low);
      high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(y.high), w.high, high);
    }
  };
  /// Sums of four vectors, each by pairs within and then across halves.
  [[gnu::always_inline]] static inline __m256 pairs(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  }
  template <int Q>
  [[gnu::always_inline]] static inline void reduce_whole(const total* t, float* out) {
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
      const __m128i x = _mm_add_epi32(_mm256_castsi256_si128(t[g].whole), _mm256_extracti128_si256(t[g].whole, 1));
      const __m128i y = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
      out[g] = static_cast<float>(_mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1))));
    }
  }
  template <int Q>
  [[gnu::always_inline]] static inline void reduce(const total* t, float* out) {
    constexpr int b = Q > 1 ? 1 : 0, c = Q > 2 ? 2 : 0, d = Q > 3 ? 3 : 0;
    const __m256 x = _mm256_add_ps(pairs(t[0].low, t[b].low, t[c].low, t[d].low), pairs(t[0].high, t[b].high, t[c].high, t[d].high));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
  }
};

/// Comparisons of floats as bits.
struct float_bits {
  /// Bit j: x[j] >= level; not so for NaN.
  [[gnu::always_inline]] static inline std::uint32_t at_least(const float* x, __m256 level) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), level, _CMP_GE_OQ)));
  }
  /// first + j for every bit j.
  [[gnu::always_inline]] static inline std::int32_t* write(std::uint32_t bits, std::int32_t first, std::int32_t* out) {
    for (; bits != 0; bits &= bits - 1) *out++ = first + __builtin_ctz(bits);
    return out;
  }
};

/// Vectors of four doubles.
struct double_lanes {
  static constexpr int width = 4;
  using d = __m256d;
  using count = __m256i;

  [[gnu::always_inline]] static inline d set(double x) { return _mm256_set1_pd(x); }
  [[gnu::always_inline]] static inline d multiply_add(d a, d b, d c) { return _mm256_fmadd_pd(a, b, c); }  // of products that are exact
  [[gnu::always_inline]] static inline d one_vector(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  [[gnu::always_inline]] static inline void narrow(d x, float* p) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }
  [[gnu::always_inline]] static inline count none() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline std::int64_t whole(count c) {
    const __m128i x = _mm_add_epi64(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
    return _mm_cvtsi128_si64(x) + _mm_extract_epi64(x, 1);
  }
  /// Adds fixed_point of numbers between 0 and 1; NaN adds nothing.
  [[gnu::always_inline]] static inline count add_fixed_point(d x, count sum) {
    const d magic = set(0x1p14);
    const __m256i fixed = _mm256_castpd_si256(_mm256_add_pd(_mm256_max_pd(x, set(0)), magic));
    return _mm256_add_epi64(sum, _mm256_sub_epi64(fixed, _mm256_castpd_si256(magic)));
  }
};

}  // namespace kvx::simd::avx2
