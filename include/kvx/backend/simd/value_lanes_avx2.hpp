// What value_kernels.hpp computes with under AVX2, FMA. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

struct value_lanes {
  using bytes = __m256i;
  using ints = __m256i;

  /// The first n bytes, n a multiple of 4, zeros behind them.
  [[gnu::always_inline]] static inline bytes load(const std::uint8_t* p, int n) {
    if (n == value_chunk) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i words = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), _mm256_cmpgt_epi32(_mm256_set1_epi32(n / 4), words));
  }
  template <int Bits>
  [[gnu::always_inline]] static inline bytes field(bytes b, int f) {
    return _mm256_and_si256(_mm256_srli_epi16(b, f * Bits), _mm256_set1_epi8((1 << Bits) - 1));
  }
  struct table {
    __m256i level;
    [[gnu::always_inline]] explicit inline table(const std::int8_t* levels)
        : level(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)))) {}
    [[gnu::always_inline]] inline bytes look_up(bytes i) const { return _mm256_shuffle_epi8(level, i); }
  };
  /// Vector j: bytes 4 j .. 4 j + 3 of each half, four tokens beside each other.
  [[gnu::always_inline]] static inline void beside(bytes* v) {
    const __m256i a = _mm256_unpacklo_epi8(v[0], v[1]), b = _mm256_unpackhi_epi8(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi8(v[2], v[3]), d = _mm256_unpackhi_epi8(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi16(a, c);
    v[1] = _mm256_unpackhi_epi16(a, c);
    v[2] = _mm256_unpacklo_epi16(b, d);
    v[3] = _mm256_unpackhi_epi16(b, d);
  }
  /// The largest size of 32 weights, NaN left out; spoilt: 0, NaN where one is not finite.
  [[gnu::always_inline]] static inline float largest(const float* w, float& spoilt) {
    __m256 most = _mm256_setzero_ps(), zero = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int t = 0; t < value_block; t += 8) {
      const __m256 x = _mm256_loadu_ps(w + t);
      most = _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), most);
      zero = _mm256_fmadd_ps(x, _mm256_setzero_ps(), zero);
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(zero), _mm256_extractf128_ps(zero, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    spoilt = _mm_cvtss_f32(_mm_add_ss(z, _mm_shuffle_ps(z, z, 1)));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  /// Ties to even.
  [[gnu::always_inline]] static inline void scale(const float* w, float inverse, std::int8_t* whole) {
    const __m256 by = _mm256_set1_ps(inverse);
    __m256i eight[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) eight[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(w + 8 * i), by));
    const __m256i x = _mm256_packs_epi16(_mm256_packs_epi32(eight[0], eight[1]), _mm256_packs_epi32(eight[2], eight[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), _mm256_permutevar8x32_epi32(x, order));
  }
  /// Four weights beside each other, and their sizes: the unsigned side of a byte product.
  struct quad_weights {
    std::int32_t w[value_block / 4];
    std::int32_t size[value_block / 4];
    [[gnu::always_inline]] inline void set(const std::int8_t* whole) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(whole));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(w), x);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(size), _mm256_abs_epi8(x));
    }
    [[gnu::always_inline]] inline ints start() const { return _mm256_setzero_si256(); }
    [[gnu::always_inline]] inline ints add(ints sum, bytes x, int u) const {
      const __m256i y = _mm256_sign_epi8(x, _mm256_set1_epi32(w[u]));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(size[u]), y);  // at most 2 * 127 * 127: no saturation
      return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  };
  [[gnu::always_inline]] static inline void accumulate(ints a, float unit, float* sums) {
    _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), _mm256_set1_ps(unit), _mm256_loadu_ps(sums)));
  }
};

}  // namespace kvx::simd::avx2
