// What value_kernels.hpp computes with under AVX-512 VL and VNNI. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512_vnni {

struct value_lanes : value_ymm {
  /// The first n bytes, n a multiple of 4, zeros behind them.
  [[gnu::always_inline]] static inline bytes load(const std::uint8_t* p, int n) {
    return _mm256_maskz_loadu_epi32(static_cast<__mmask8>((1u << n / 4) - 1), p);
  }
  /// Levels plus 128: the unsigned side of a byte dot product.
  struct table {
    __m256i level;
    [[gnu::always_inline]] explicit inline table(const std::int8_t* levels)
        : level(_mm256_add_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels))),
                                _mm256_set1_epi8(-128))) {}
    [[gnu::always_inline]] inline bytes look_up(bytes i) const { return _mm256_shuffle_epi8(level, i); }
  };
  /// Ties to even.
  [[gnu::always_inline]] static inline void scale(const float* w, float inverse, std::int8_t* whole) {
    const __m256 by = _mm256_set1_ps(inverse);
#pragma GCC unroll 4
    for (int t = 0; t < value_block; t += 8) {
      const __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(w + t), by));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(whole + t), _mm256_maskz_cvtsepi32_epi8(0xff, x));
    }
  }
  /// Four weights beside each other; sums start from -128 times all of them.
  struct quad_weights {
    std::int32_t w[value_block / 4];
    std::int32_t first;
    [[gnu::always_inline]] inline void set(const std::int8_t* whole) {
      std::int32_t sum = 0;
      for (int t = 0; t < value_block; ++t) sum += whole[t];
      first = -128 * sum;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(w), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(whole)));
    }
    [[gnu::always_inline]] inline ints start() const { return _mm256_set1_epi32(first); }
    [[gnu::always_inline]] inline ints add(ints sum, bytes x, int u) const { return _mm256_dpbusd_epi32(sum, x, _mm256_set1_epi32(w[u])); }
  };
};

}  // namespace kvx::simd::avx512_vnni
