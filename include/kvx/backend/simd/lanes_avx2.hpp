// Vectors of eight floats: AVX2, FMA, F16C. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

struct lanes {
  static constexpr instruction_set set_name = instruction_set::avx2;
  static constexpr int width = 8;
  static constexpr int most_queries = 4;  // queries that share one pass over the rows
  static constexpr int panel_step = 4;  // 12 sums, 3 query vectors, 1 key: the 16 registers
  static constexpr int tokens(int queries) { return queries > 2 ? 2 : 4; }
  static constexpr int chunks(int queries) { return queries > 2 ? 1 : queries == 2 ? 2 : 4; }

  using f = __m256;
  using mask = __m256;

  [[gnu::always_inline]] static inline f load(const float* p) { return _mm256_loadu_ps(p); }
  [[gnu::always_inline]] static inline void store(float* p, f x) { _mm256_storeu_ps(p, x); }
  [[gnu::always_inline]] static inline f set(float x) { return _mm256_set1_ps(x); }
  [[gnu::always_inline]] static inline f add(f a, f b) { return _mm256_add_ps(a, b); }
  [[gnu::always_inline]] static inline f sub(f a, f b) { return _mm256_sub_ps(a, b); }
  [[gnu::always_inline]] static inline f mul(f a, f b) { return _mm256_mul_ps(a, b); }
  [[gnu::always_inline]] static inline f div(f a, f b) { return _mm256_div_ps(a, b); }
  [[gnu::always_inline]] static inline f fma(f a, f b, f c) { return _mm256_fmadd_ps(a, b, c); }
  [[gnu::always_inline]] static inline mask less(f a, f b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  [[gnu::always_inline]] static inline f select(mask m, f a, f b) { return _mm256_blendv_ps(b, a, m); }
  [[gnu::always_inline]] static inline f max(f a, f b) { return _mm256_max_ps(a, b); }  // b if one is NaN
  [[gnu::always_inline]] static inline f round(f x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  [[gnu::always_inline]] static inline f scale(f x, f n) {  // x * 2^n, n whole, -126 <= n <= 127
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  [[gnu::always_inline]] static inline float sum(f x) {
    const __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }
  [[gnu::always_inline]] static inline float largest(f x) {  // of no NaN
    const __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 t = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
  }
  /// out[0..3] = the sums of a, b, c, d: pairs of vectors share every addition.
  [[gnu::always_inline]] static inline void sum4(f a, f b, f c, f d, float* out) {
    const f ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));                      // a b a b | a b a b
    const f cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const f abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));      // a b c d | a b c d
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }
};

/// The last n < 16 elements of 16 bits of a row: whole pairs by a masked load, an odd one alone.
struct tail16 {
  __m256i pairs;
  __m256i last;
  int n;
  [[gnu::always_inline]] explicit inline tail16(int count) : n(count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    pairs = _mm256_cmpgt_epi32(_mm256_set1_epi32(n / 2), lane);
    last = _mm256_cmpeq_epi32(_mm256_set1_epi32(n % 2 != 0 ? n / 2 : -1), lane);
  }
  [[gnu::always_inline]] inline __m256i load(const void* p) const {
    __m256i x = _mm256_maskload_epi32(static_cast<const int*>(p), pairs);
    if (n % 2 != 0) x = _mm256_or_si256(x, _mm256_and_si256(_mm256_set1_epi32(static_cast<const unsigned short*>(p)[n - 1]), last));
    return x;
  }
};

/// 2 * width elements of a row as two vectors in lane order; fewer for the last ones of a row.
template <class E>
struct chunk;

template <>
struct chunk<bf16> {
  using tail = tail16;
  [[gnu::always_inline]] static inline void split(__m256i x, __m256& a, __m256& b) {
    a = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    b = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
  }
  [[gnu::always_inline]] static inline void load(const bf16* p, __m256& a, __m256& b) {
    split(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), a, b);
  }
  [[gnu::always_inline]] static inline void load(const bf16* p, const tail& rest, __m256& a, __m256& b) { split(rest.load(p), a, b); }
};

template <>
struct chunk<half> {
  using tail = tail16;
  [[gnu::always_inline]] static inline void split(__m256i x, __m256& a, __m256& b) {
    a = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
    b = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
  }
  [[gnu::always_inline]] static inline void load(const half* p, __m256& a, __m256& b) {
    a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    b = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  }
  [[gnu::always_inline]] static inline void load(const half* p, const tail& rest, __m256& a, __m256& b) { split(rest.load(p), a, b); }
};

template <>
struct chunk<float> {
  struct tail {
    __m256i low;
    __m256i high;
    [[gnu::always_inline]] explicit inline tail(int n) {
      low = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
      high = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
    }
  };
  [[gnu::always_inline]] static inline void load(const float* p, __m256& a, __m256& b) {
    a = _mm256_loadu_ps(p);
    b = _mm256_loadu_ps(p + 8);
  }
  [[gnu::always_inline]] static inline void load(const float* p, const tail& rest, __m256& a, __m256& b) {
    a = _mm256_maskload_ps(p, rest.low);
    b = _mm256_maskload_ps(p + 8, rest.high);
  }
};

/// Eight elements to floats and back, in natural order.
[[gnu::always_inline]] inline __m256 widen8(const float* p) { return _mm256_loadu_ps(p); }
[[gnu::always_inline]] inline __m256 widen8(const half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
[[gnu::always_inline]] inline __m256 widen8(const bf16* p) {
  const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
[[gnu::always_inline]] inline void narrow8(__m256 x, float* p) { _mm256_storeu_ps(p, x); }
[[gnu::always_inline]] inline void narrow8(__m256 x, half* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
[[gnu::always_inline]] inline void narrow8(__m256 x, bf16* p) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i high = _mm256_srli_epi32(u, 16);
  const __m256i even = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, even), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i bits = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

template <class E>
inline void widen(const E* p, int n, float* out) {
  int j = 0;
  for (; j + 8 <= n; j += 8) _mm256_storeu_ps(out + j, widen8(p + j));
  if (j < n) {
    alignas(E) unsigned char rest[8 * sizeof(E)] = {};
    __builtin_memcpy(rest, p + j, static_cast<unsigned>(n - j) * sizeof(E));
    _mm256_storeu_ps(out + j, widen8(reinterpret_cast<const E*>(rest)));
  }
}

template <class E>
inline void narrow(const float* p, int n, E* out) {
  int j = 0;
  for (; j + 8 <= n; j += 8) narrow8(_mm256_loadu_ps(p + j), out + j);
  if (j < n) {
    float rest[8] = {};
    alignas(E) unsigned char narrowed[8 * sizeof(E)];
    __builtin_memcpy(rest, p + j, static_cast<unsigned>(n - j) * sizeof(float));
    narrow8(_mm256_loadu_ps(rest), reinterpret_cast<E*>(narrowed));
    __builtin_memcpy(out + j, narrowed, static_cast<unsigned>(n - j) * sizeof(E));
  }
}

}  // namespace kvx::simd::avx2
