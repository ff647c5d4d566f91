// What rerank_kernels.hpp computes with under AVX-512 F, BW, DQ, VL. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

// Zero-masked forms with a full mask: see lanes_avx512.hpp.

/// Chunks of 64 coordinates of a code as one vector of bytes, and the 16 quads that they make as one vector of 32-bit lanes.
struct code_lanes {
  using floats = __m512;
  using ints = __m512i;
  using chunk = __m512i;

  struct signs {
    __mmask64 negative;
    [[gnu::always_inline]] explicit inline signs(std::uint64_t positive) : negative(~positive) {}
  };

  template <int Bits>
  struct table {
    static constexpr int parts = Bits > 4 ? 1 << (Bits - 4) : 1;
    __m512i part[parts];
    [[gnu::always_inline]] explicit inline table(const std::uint8_t* levels) {
#pragma GCC unroll 8
      for (int j = 0; j < parts; ++j)
        part[j] = _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels + 16 * j)));
    }
  };

  template <int Bits>
  [[gnu::always_inline]] static inline chunk levels_of(const table<Bits>& t, const std::uint64_t* planes) {
    __m512i index = _mm512_maskz_set1_epi8(planes[0], 1);
#pragma GCC unroll 8
    for (int p = 1; p < (Bits < 4 ? Bits : 4); ++p)
      index = _mm512_mask_add_epi8(index, planes[p], index, _mm512_set1_epi8(static_cast<char>(1 << p)));
    __m512i level = _mm512_shuffle_epi8(t.part[0], index);
    if constexpr (Bits > 4) {
#pragma GCC unroll 8
      for (int j = 1; j < table<Bits>::parts; ++j) {
        std::uint64_t here = ~std::uint64_t{0};
#pragma GCC unroll 8
        for (int p = 4; p < Bits; ++p) here &= (j >> (p - 4) & 1) != 0 ? planes[p] : ~planes[p];
        level = _mm512_mask_shuffle_epi8(level, here, t.part[j], index);
      }
    }
    return level;
  }
  /// The first n coordinates of a, the others of b.
  [[gnu::always_inline]] static inline chunk join(chunk a, chunk b, int n) {
    return _mm512_mask_mov_epi8(b, (std::uint64_t{1} << n) - 1, a);
  }
  [[gnu::always_inline]] static inline ints quads(chunk v, signs s, const std::int8_t* q) {
    const __m512i plain = _mm512_loadu_si512(q);
    const __m512i x = _mm512_mask_sub_epi8(plain, s.negative, _mm512_setzero_si512(), plain);
    return _mm512_madd_epi16(_mm512_maddubs_epi16(v, x), _mm512_set1_epi16(1));  // pairs: at most 2 * 127 * 127, no saturation
  }

  [[gnu::always_inline]] static inline floats widen(__m128i low, __m128i high) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
  }
  [[gnu::always_inline]] static inline floats once(const half* w) {
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
  }
  [[gnu::always_inline]] static inline floats twice(const half* w) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
    return widen(_mm_unpacklo_epi16(x, x), _mm_unpackhi_epi16(x, x));
  }
  [[gnu::always_inline]] static inline floats four_times(const half* w) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w));
    const __m128i y = _mm_unpacklo_epi16(x, x);
    return widen(_mm_unpacklo_epi32(y, y), _mm_unpackhi_epi32(y, y));
  }
  [[gnu::always_inline]] static inline float one(const half* w) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*reinterpret_cast<const unsigned short*>(w))));
  }

  template <bool OneWeight>
  struct total {
    __m512 x;
    __m512i whole;
    [[gnu::always_inline]] inline void clear() {
      x = _mm512_setzero_ps();
      whole = _mm512_setzero_si512();
    }
    [[gnu::always_inline]] inline void add(ints y) { whole = _mm512_add_epi32(whole, y); }
    [[gnu::always_inline]] inline void add(ints y, floats w) { x = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, y), w, x); }
  };
  template <bool OneWeight, int Q>
  [[gnu::always_inline]] static inline void reduce(const total<OneWeight>* t, float* out) {
    if constexpr (OneWeight) {
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) {
        const __m256i half_sum =
            _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xff, t[g].whole, 0), _mm512_maskz_extracti64x4_epi64(0xff, t[g].whole, 1));
        const __m128i x = _mm_add_epi32(_mm256_castsi256_si128(half_sum), _mm256_extracti128_si256(half_sum, 1));
        const __m128i y = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
        out[g] = static_cast<float>(_mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1))));
      }
    } else {
      constexpr int b = Q > 1 ? 1 : 0, c = Q > 2 ? 2 : 0, d = Q > 3 ? 3 : 0;
      constexpr __mmask16 all = 0xffff;
      const __m512 ab = _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, t[0].x, t[b].x), _mm512_maskz_unpackhi_ps(all, t[0].x, t[b].x));
      const __m512 cd = _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, t[c].x, t[d].x), _mm512_maskz_unpackhi_ps(all, t[c].x, t[d].x));
      const __m512 x = _mm512_add_ps(_mm512_maskz_shuffle_ps(all, ab, cd, 0x44), _mm512_maskz_shuffle_ps(all, ab, cd, 0xee));
      const __m256 y = _mm256_add_ps(lanes::low(x), lanes::high(x));
      _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
    }
  }
};

/// Comparisons of floats as bits.
struct float_bits {
  /// Bit j: x[j] >= level; not so for NaN.
  [[gnu::always_inline]] static inline std::uint32_t at_least(const float* x, __m512 level) {
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), level, _CMP_GE_OQ);
  }
  /// first + j for every bit j; up to a vector is written.
  [[gnu::always_inline]] static inline std::int32_t* write(std::uint32_t bits, std::int32_t first, std::int32_t* out) {
    const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), ids));
    return out + __builtin_popcount(bits);
  }
};

/// Vectors of eight doubles.
struct double_lanes {
  static constexpr int width = 8;
  using d = __m512d;
  using count = __m512i;

  [[gnu::always_inline]] static inline d set(double x) { return _mm512_set1_pd(x); }
  [[gnu::always_inline]] static inline d to_doubles(__m256 x) { return _mm512_maskz_cvtps_pd(0xff, x); }
  [[gnu::always_inline]] static inline __m256 to_floats(d x) { return _mm512_maskz_cvtpd_ps(0xff, x); }
  [[gnu::always_inline]] static inline d multiply_add(d a, d b, d c) { return _mm512_fmadd_pd(a, b, c); }  // of products that are exact
  [[gnu::always_inline]] static inline d one_vector(const float* p) { return to_doubles(_mm256_loadu_ps(p)); }
  [[gnu::always_inline]] static inline void narrow(d x, float* p) { _mm256_storeu_ps(p, to_floats(x)); }
  [[gnu::always_inline]] static inline count none() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static inline std::int64_t whole(count c) {
    const __m256i y = _mm256_add_epi64(_mm512_maskz_extracti64x4_epi64(0xff, c, 0), _mm512_maskz_extracti64x4_epi64(0xff, c, 1));
    const __m128i x = _mm_add_epi64(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    return _mm_cvtsi128_si64(x) + _mm_extract_epi64(x, 1);
  }
  /// Adds fixed_point of numbers between 0 and 1; NaN adds nothing.
  [[gnu::always_inline]] static inline count add_fixed_point(d x, count sum) {
    const d magic = set(0x1p14);
    const __m512i fixed = _mm512_castpd_si512(_mm512_add_pd(_mm512_maskz_max_pd(0xff, x, set(0)), magic));
    return _mm512_add_epi64(sum, _mm512_sub_epi64(fixed, _mm512_castpd_si512(magic)));
  }
};

}  // namespace kvx::simd::avx512
