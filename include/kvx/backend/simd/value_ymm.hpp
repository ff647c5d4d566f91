// What the two sets that have vectors of 32 bytes share of value_lanes. Included by dispatch.hpp under the rules of kernels.hpp, before the
// lanes of the set.

struct value_ymm {
  using bytes = __m256i;
  using ints = __m256i;

  template <int Bits>
  [[gnu::always_inline]] static inline bytes field(bytes b, int f) {
    return _mm256_and_si256(_mm256_srli_epi16(b, f * Bits), _mm256_set1_epi8((1 << Bits) - 1));
  }
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
  [[gnu::always_inline]] static inline void accumulate(ints a, float unit, float* sums) {
    _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), _mm256_set1_ps(unit), _mm256_loadu_ps(sums)));
  }
};
