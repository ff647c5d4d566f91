// What rerank_kernels.hpp computes with under AVX-512 F, BW, DQ, VL. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

// Zero-masked forms with a full mask: see lanes_avx512.hpp.

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
