// Vectors of sixteen floats: AVX-512 F, BW, DQ, VL. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

// Some intrinsics stand here in their zero-masked form with a full mask: the plain form makes g++ 12 warn of an uninitialised variable.
struct lanes {
  static constexpr instruction_set set_name = instruction_set::avx512;
  static constexpr int width = 16;
  static constexpr int most_queries = 4;  // queries that share one pass over the rows
  static constexpr int panel_step = 8;  // 24 sums of the 32 registers
  static constexpr int tokens(int) { return 4; }
  static constexpr int chunks(int queries) { return queries > 2 ? 2 : 4; }

  using f = __m512;
  using mask = __mmask16;

  [[gnu::always_inline]] static inline f load(const float* p) { return _mm512_loadu_ps(p); }
  [[gnu::always_inline]] static inline void store(float* p, f x) { _mm512_storeu_ps(p, x); }
  [[gnu::always_inline]] static inline f set(float x) { return _mm512_set1_ps(x); }
  [[gnu::always_inline]] static inline f add(f a, f b) { return _mm512_add_ps(a, b); }
  [[gnu::always_inline]] static inline f sub(f a, f b) { return _mm512_sub_ps(a, b); }
  [[gnu::always_inline]] static inline f mul(f a, f b) { return _mm512_mul_ps(a, b); }
  [[gnu::always_inline]] static inline f div(f a, f b) { return _mm512_div_ps(a, b); }
  [[gnu::always_inline]] static inline f fma(f a, f b, f c) { return _mm512_fmadd_ps(a, b, c); }
  [[gnu::always_inline]] static inline mask less(f a, f b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  [[gnu::always_inline]] static inline f select(mask m, f a, f b) { return _mm512_mask_blend_ps(m, b, a); }
  [[gnu::always_inline]] static inline f max(f a, f b) { return _mm512_maskz_max_ps(0xffff, a, b); }  // b if one is NaN
  [[gnu::always_inline]] static inline f round(f x) {
    return _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  [[gnu::always_inline]] static inline f scale(f x, f n) { return _mm512_maskz_scalef_ps(0xffff, x, n); }  // x * 2^n, n whole
  [[gnu::always_inline]] static inline __m256 low(f x) {
    return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xff, _mm512_castps_pd(x), 0));
  }
  [[gnu::always_inline]] static inline __m256 high(f x) {
    return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xff, _mm512_castps_pd(x), 1));
  }
  // By hand: _mm512_reduce_add_ps warns of an uninitialised variable under g++ 12.
  [[gnu::always_inline]] static inline float sum(f x) {
    const __m256 y = _mm256_add_ps(low(x), high(x));
    const __m128 s = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }
  [[gnu::always_inline]] static inline float largest(f x) {  // of no NaN
    const __m256 y = _mm256_max_ps(low(x), high(x));
    const __m128 s = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    const __m128 t = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
  }
  /// out[0..3] = the sums of a, b, c, d: pairs of vectors share every addition.
  [[gnu::always_inline]] static inline void sum4(f a, f b, f c, f d, float* out) {
    const f ab = _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));  // a b a b, four times
    const f cd = _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, c, d), _mm512_maskz_unpackhi_ps(0xffff, c, d));
    const f abcd =
        _mm512_add_ps(_mm512_maskz_shuffle_ps(0xffff, ab, cd, 0x44), _mm512_maskz_shuffle_ps(0xffff, ab, cd, 0xee));  // a b c d, four times
    const __m256 y = _mm256_add_ps(low(abcd), high(abcd));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
  }
};

/// 2 * width elements of a row as two vectors in lane order; fewer, by a masked load, for the last ones of a row.
template <class E>
struct chunk;

/// Mask of the first n of 32 elements, n < 32.
struct tail32 {
  __mmask32 m;
  [[gnu::always_inline]] explicit inline tail32(int n) : m((__mmask32{1} << n) - 1) {}
};

template <>
struct chunk<bf16> {
  using tail = tail32;
  [[gnu::always_inline]] static inline void split(__m512i x, __m512& a, __m512& b) {
    a = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, x, 16));
    b = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
  }
  [[gnu::always_inline]] static inline void load(const bf16* p, __m512& a, __m512& b) { split(_mm512_loadu_si512(p), a, b); }
  [[gnu::always_inline]] static inline void load(const bf16* p, tail rest, __m512& a, __m512& b) {
    split(_mm512_maskz_loadu_epi16(rest.m, p), a, b);
  }
};

template <>
struct chunk<half> {
  using tail = tail32;
  [[gnu::always_inline]] static inline void load(const half* p, __m512& a, __m512& b) {
    a = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    b = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16)));
  }
  [[gnu::always_inline]] static inline void load(const half* p, tail rest, __m512& a, __m512& b) {
    const __m512i x = _mm512_maskz_loadu_epi16(rest.m, p);
    a = _mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, x, 0));
    b = _mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, x, 1));
  }
};

template <>
struct chunk<float> {
  using tail = tail32;
  [[gnu::always_inline]] static inline void load(const float* p, __m512& a, __m512& b) {
    a = _mm512_loadu_ps(p);
    b = _mm512_loadu_ps(p + 16);
  }
  [[gnu::always_inline]] static inline void load(const float* p, tail rest, __m512& a, __m512& b) {
    a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(rest.m & 0xffffu), p);
    b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(rest.m >> 16), p + 16);
  }
};

/// The first elements of a row that the mask names, to floats and back, in natural order.
[[gnu::always_inline]] inline __m512 widen16(const float* p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
[[gnu::always_inline]] inline __m512 widen16(const half* p, __mmask16 m) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(m, p));
}
[[gnu::always_inline]] inline __m512 widen16(const bf16* p, __mmask16 m) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(m, p)), 16));
}
[[gnu::always_inline]] inline void narrow16(__m512 x, __mmask16 m, float* p) { _mm512_mask_storeu_ps(p, m, x); }
[[gnu::always_inline]] inline void narrow16(__m512 x, __mmask16 m, half* p) {
  _mm256_mask_storeu_epi16(p, m, _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
[[gnu::always_inline]] inline void narrow16(__m512 x, __mmask16 m, bf16* p) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i high = _mm512_maskz_srli_epi32(0xffff, u, 16);
  const __m512i even = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(u, even), 16);
  const __m512i bits = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high, _mm512_set1_epi32(0x40));
  _mm256_mask_storeu_epi16(p, m, _mm512_maskz_cvtepi32_epi16(0xffff, bits));
}

[[gnu::always_inline]] inline __mmask16 first_of(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u); }

template <class E>
inline void widen(const E* p, int n, float* out) {
  for (int j = 0; j < n; j += 16) _mm512_storeu_ps(out + j, widen16(p + j, first_of(n - j)));
}

template <class E>
inline void narrow(const float* p, int n, E* out) {
  for (int j = 0; j < n; j += 16) narrow16(_mm512_maskz_loadu_ps(first_of(n - j), p + j), first_of(n - j), out + j);
}

}  // namespace kvx::simd::avx512
