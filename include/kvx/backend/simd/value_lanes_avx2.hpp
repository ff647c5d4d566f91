// What value_kernels.hpp computes with under AVX2, FMA. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

struct value_lanes : value_ymm {
  /// The first n bytes, n a multiple of 4, zeros behind them.
  [[gnu::always_inline]] static inline bytes load(const std::uint8_t* p, int n) {
    if (n == value_chunk) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i words = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), _mm256_cmpgt_epi32(_mm256_set1_epi32(n / 4), words));
  }
  struct table {
    __m256i level;
    [[gnu::always_inline]] explicit inline table(const std::int8_t* levels)
        : level(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)))) {}
    [[gnu::always_inline]] inline bytes look_up(bytes i) const { return _mm256_shuffle_epi8(level, i); }
  };
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
};

}  // namespace kvx::simd::avx2
