// What encoding needs beyond lanes, for eight keys side by side: AVX2. Included once, inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

struct encode_lanes {
  static constexpr int radix = 8;  // elements of a Hadamard pass in registers
  using f = __m256;
  using i = __m256i;
  using mask = __m256i;

  /// x, rounded: see rounded_product.
  [[gnu::always_inline]] static inline f rounded(f x) {
    asm("" : "+x"(x));
    return x;
  }
  [[gnu::always_inline]] static inline f flip(f x, f sign) { return _mm256_xor_ps(x, sign); }
  [[gnu::always_inline]] static inline f absolute(f x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
  [[gnu::always_inline]] static inline mask reaches(f x, f y) { return _mm256_castps_si256(_mm256_cmp_ps(x, y, _CMP_GE_OQ)); }
  [[gnu::always_inline]] static inline i none() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline i add_where(mask m, i x, int step) {
    return _mm256_add_epi32(x, _mm256_and_si256(m, _mm256_set1_epi32(step)));
  }
  [[gnu::always_inline]] static inline i either(i x, i y) { return _mm256_or_si256(x, y); }
  [[gnu::always_inline]] static inline i up(i x, int bits) { return _mm256_sll_epi32(x, _mm_cvtsi32_si128(bits)); }
  [[gnu::always_inline]] static inline i down(i x, int bits) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(bits)); }
  [[gnu::always_inline]] static inline i both(i x, int bits) { return _mm256_and_si256(x, _mm256_set1_epi32(bits)); }
  [[gnu::always_inline]] static inline i times(i x, int y) { return _mm256_mullo_epi32(x, _mm256_set1_epi32(y)); }
  [[gnu::always_inline]] static inline void store(float* p, i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }

  /// Eight floats or integers, looked up by numbers below 8.
  struct floats8 {
    __m256 x;
    [[gnu::always_inline]] explicit inline floats8(const float* p) : x(_mm256_loadu_ps(p)) {}
    [[gnu::always_inline]] inline f operator[](i at) const { return _mm256_permutevar8x32_ps(x, at); }
  };
  struct ints8 {
    __m256i x;
    [[gnu::always_inline]] explicit inline ints8(const std::int32_t* p) : x(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))) {}
    [[gnu::always_inline]] inline i operator[](i at) const { return _mm256_permutevar8x32_epi32(x, at); }
  };
  [[gnu::always_inline]] static inline f gather(const float* p, i at) {
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, at, _mm256_castsi256_ps(_mm256_set1_epi32(-1)), 4);
  }

  /// out[j][t] = in[t][j]: in (8, 8) dense, out rows `pitch` floats apart.
  [[gnu::always_inline]] static inline void transpose(const float* in, float* out, std::int64_t pitch) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) a[t] = _mm256_loadu_ps(in + 8 * t);
#pragma GCC unroll 4
    for (int t = 0; t < 8; t += 2) {
      b[t] = _mm256_unpacklo_ps(a[t], a[t + 1]);
      b[t + 1] = _mm256_unpackhi_ps(a[t], a[t + 1]);
    }
#pragma GCC unroll 2
    for (int t = 0; t < 8; t += 4) {
      a[t] = _mm256_shuffle_ps(b[t], b[t + 2], 0x44);
      a[t + 1] = _mm256_shuffle_ps(b[t], b[t + 2], 0xee);
      a[t + 2] = _mm256_shuffle_ps(b[t + 1], b[t + 3], 0x44);
      a[t + 3] = _mm256_shuffle_ps(b[t + 1], b[t + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {  // a[j], a[4 + j]: columns j and 4 + j of keys 0..3 and 4..7
      _mm256_storeu_ps(out + j * pitch, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
      _mm256_storeu_ps(out + (4 + j) * pitch, _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
    }
  }

  /// Byte `byte` of each of n <= 8 integers, stored by store.
  [[gnu::always_inline]] static inline void store_bytes(const float* p, int byte, int n, std::uint8_t* out) {
    const __m256i x = _mm256_srl_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm_cvtsi32_si128(8 * byte));
    const __m256i low = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));  // four bytes in each half
    const auto bytes =
        static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1))));
    if (n == 8) {
      __builtin_memcpy(out, &bytes, 8);
    } else {
      __builtin_memcpy(out, &bytes, static_cast<unsigned>(n));
    }
  }
};

}  // namespace kvx::simd::avx2
