// What encoding needs beyond lanes, for sixteen keys side by side: AVX-512 F, BW, DQ, VL.
// Included once, inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

struct encode_lanes {
  static constexpr int radix = 16;  // elements of a Hadamard pass in registers
  using f = __m512;
  using i = __m512i;
  using mask = __mmask16;

  /// x, rounded: see rounded_product.
  [[gnu::always_inline]] static inline f rounded(f x) {
    asm("" : "+v"(x));
    return x;
  }
  [[gnu::always_inline]] static inline f flip(f x, f sign) { return _mm512_xor_ps(x, sign); }
  [[gnu::always_inline]] static inline f absolute(f x) { return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff))); }
  [[gnu::always_inline]] static inline mask reaches(f x, f y) { return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ); }
  [[gnu::always_inline]] static inline i none() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static inline i add_where(mask m, i x, int step) {
    return _mm512_mask_add_epi32(x, m, x, _mm512_set1_epi32(step));
  }
  [[gnu::always_inline]] static inline i either(i x, i y) { return _mm512_or_si512(x, y); }
  [[gnu::always_inline]] static inline i up(i x, int bits) { return _mm512_maskz_sll_epi32(0xffff, x, _mm_cvtsi32_si128(bits)); }
  [[gnu::always_inline]] static inline i down(i x, int bits) { return _mm512_maskz_srl_epi32(0xffff, x, _mm_cvtsi32_si128(bits)); }
  [[gnu::always_inline]] static inline i both(i x, int bits) { return _mm512_and_si512(x, _mm512_set1_epi32(bits)); }
  [[gnu::always_inline]] static inline i times(i x, int y) { return _mm512_mullo_epi32(x, _mm512_set1_epi32(y)); }
  [[gnu::always_inline]] static inline void store(float* p, i x) { _mm512_storeu_si512(p, x); }

  /// Eight floats or integers, looked up by numbers below 8.
  struct floats8 {
    __m512 x;
    [[gnu::always_inline]] explicit inline floats8(const float* p) : x(_mm512_maskz_broadcast_f32x8(0xffff, _mm256_loadu_ps(p))) {}
    [[gnu::always_inline]] inline f operator[](i at) const { return _mm512_maskz_permutexvar_ps(0xffff, at, x); }
  };
  struct ints8 {
    __m512i x;
    [[gnu::always_inline]] explicit inline ints8(const std::int32_t* p)
        : x(_mm512_maskz_broadcast_i32x8(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))) {}
    [[gnu::always_inline]] inline i operator[](i at) const { return _mm512_maskz_permutexvar_epi32(0xffff, at, x); }
  };
  [[gnu::always_inline]] static inline f gather(const float* p, i at) {
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, at, p, 4);
  }

  /// out[j][t] = in[t][j]: in (16, 16) dense, out rows `pitch` floats apart.
  [[gnu::always_inline]] static inline void transpose(const float* in, float* out, std::int64_t pitch) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) a[t] = _mm512_loadu_ps(in + 16 * t);
#pragma GCC unroll 8
    for (int t = 0; t < 16; t += 2) {
      b[t] = _mm512_maskz_unpacklo_ps(0xffff, a[t], a[t + 1]);
      b[t + 1] = _mm512_maskz_unpackhi_ps(0xffff, a[t], a[t + 1]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < 16; t += 4) {
      a[t] = _mm512_maskz_shuffle_ps(0xffff, b[t], b[t + 2], 0x44);
      a[t + 1] = _mm512_maskz_shuffle_ps(0xffff, b[t], b[t + 2], 0xee);
      a[t + 2] = _mm512_maskz_shuffle_ps(0xffff, b[t + 1], b[t + 3], 0x44);
      a[t + 3] = _mm512_maskz_shuffle_ps(0xffff, b[t + 1], b[t + 3], 0xee);
    }
    // a[4 s + j] holds columns j, 4 + j, 8 + j, 12 + j of keys 4 s .. 4 s + 3, one in each quarter.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512 low01 = _mm512_maskz_shuffle_f32x4(0xffff, a[j], a[4 + j], 0x88);       // columns j, 8 + j of keys 0..3, then of 4..7
      const __m512 low23 = _mm512_maskz_shuffle_f32x4(0xffff, a[8 + j], a[12 + j], 0x88);
      const __m512 high01 = _mm512_maskz_shuffle_f32x4(0xffff, a[j], a[4 + j], 0xdd);      // columns 4 + j, 12 + j
      const __m512 high23 = _mm512_maskz_shuffle_f32x4(0xffff, a[8 + j], a[12 + j], 0xdd);
      _mm512_storeu_ps(out + j * pitch, _mm512_maskz_shuffle_f32x4(0xffff, low01, low23, 0x88));
      _mm512_storeu_ps(out + (4 + j) * pitch, _mm512_maskz_shuffle_f32x4(0xffff, high01, high23, 0x88));
      _mm512_storeu_ps(out + (8 + j) * pitch, _mm512_maskz_shuffle_f32x4(0xffff, low01, low23, 0xdd));
      _mm512_storeu_ps(out + (12 + j) * pitch, _mm512_maskz_shuffle_f32x4(0xffff, high01, high23, 0xdd));
    }
  }

  /// Byte `byte` of each of n <= 16 integers, stored by store.
  [[gnu::always_inline]] static inline void store_bytes(const float* p, int byte, int n, std::uint8_t* out) {
    const i x = _mm512_maskz_srl_epi32(0xffff, _mm512_loadu_si512(p), _mm_cvtsi32_si128(8 * byte));
    _mm512_mask_cvtepi32_storeu_epi8(out, first_of(n), x);
  }
};

}  // namespace kvx::simd::avx512
