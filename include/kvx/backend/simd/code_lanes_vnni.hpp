// What code_kernels.hpp computes with under AVX-512 F, BW, DQ, VL, VNNI. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512_vnni {

// Zero-masked forms with a full mask: see lanes_avx512.hpp.

/// Chunks of 64 coordinates of a code as one vector of bytes, and the 16 quads that they make as one vector of 32-bit lanes.
struct code_lanes {
  using floats = __m512;
  using ints = __m512i;
  using chunk = __m512i;

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
  /// Signed levels plus 128: the unsigned side of a byte dot product.
  struct signed_chunk {
    __m512i x;
    [[gnu::always_inline]] inline signed_chunk(chunk v, std::uint64_t positive) {
      const __m512i middle = _mm512_set1_epi8(-128);
      x = _mm512_mask_add_epi8(_mm512_sub_epi8(middle, v), positive, middle, v);
    }
  };
  /// What the sums of a chunk of a query start from: -128 times each quad of it.
  using start = __m512i;
  [[gnu::always_inline]] static inline start start_of(const std::int8_t* q) {
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128), _mm512_loadu_si512(q));
    return _mm512_sub_epi32(_mm512_setzero_si512(), sums);
  }
  [[gnu::always_inline]] static inline ints quads(const signed_chunk& c, const std::int8_t* q, start from) {
    return _mm512_dpbusd_epi32(from, c.x, _mm512_loadu_si512(q));
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
  template <int Q>
  [[gnu::always_inline]] static inline void reduce_whole(const total* t, float* out) {
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) {
      const __m256i half_sum =
          _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xff, t[g].whole, 0), _mm512_maskz_extracti64x4_epi64(0xff, t[g].whole, 1));
      const __m128i x = _mm_add_epi32(_mm256_castsi256_si128(half_sum), _mm256_extracti128_si256(half_sum, 1));
      const __m128i y = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
      out[g] = static_cast<float>(_mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1))));
    }
  }
  template <int Q>
  [[gnu::always_inline]] static inline void reduce(const total* t, float* out) {
    constexpr int b = Q > 1 ? 1 : 0, c = Q > 2 ? 2 : 0, d = Q > 3 ? 3 : 0;
    constexpr __mmask16 all = 0xffff;
    const __m512 ab = _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, t[0].x, t[b].x), _mm512_maskz_unpackhi_ps(all, t[0].x, t[b].x));
    const __m512 cd = _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, t[c].x, t[d].x), _mm512_maskz_unpackhi_ps(all, t[c].x, t[d].x));
    const __m512 x = _mm512_add_ps(_mm512_maskz_shuffle_ps(all, ab, cd, 0x44), _mm512_maskz_shuffle_ps(all, ab, cd, 0xee));
    const __m256 y = _mm256_add_ps(avx512::lanes::low(x), avx512::lanes::high(x));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
  }
};

}  // namespace kvx::simd::avx512_vnni
