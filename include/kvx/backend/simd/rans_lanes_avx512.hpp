// The states of 32 rANS lanes in two vectors: AVX-512. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

/// See rans_lanes_avx2.hpp; lane i is element i % 16 of vector i / 16, and a table of 16 entries is one register.
struct rans_vectors {
  __m512i x[2];

  struct entries {
    __m512i buckets, frequencies, escape, offset;
    [[gnu::always_inline]] explicit inline entries(const symbol_lookup& t)
        : buckets(_mm512_load_si512(t.buckets)),
          frequencies(_mm512_load_si512(t.frequencies)),
          escape(_mm512_set1_epi32(t.escape)),
          offset(_mm512_set1_epi32(t.offset)) {}
  };

  struct symbols {
    __m512i s[2];
    [[gnu::always_inline]] inline void store(const entries& e, std::int16_t* out) const {
      for (int v = 0; v < 2; ++v) store_words(_mm512_add_epi32(s[v], e.offset), out + 16 * v);
    }
    [[gnu::always_inline]] inline std::uint32_t equal_to(const entries& e) const {
      return std::uint32_t{_mm512_cmpeq_epi32_mask(s[0], e.escape)} | std::uint32_t{_mm512_cmpeq_epi32_mask(s[1], e.escape)} << 16;
    }
  };

  [[gnu::always_inline]] static inline rans_vectors load(const std::uint32_t* p) {
    return {{_mm512_loadu_si512(p), _mm512_loadu_si512(p + 16)}};
  }
  [[gnu::always_inline]] inline void store(std::uint32_t* p) const {
    _mm512_storeu_si512(p, x[0]);
    _mm512_storeu_si512(p + 16, x[1]);
  }

  [[gnu::always_inline]] static inline void store_words(__m512i words, std::int16_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_maskz_cvtepi32_epi16(0xffff, words));
  }

  [[gnu::always_inline]] static inline __mmask16 among(int active, int v) {
    const int n = active - 16 * v;
    return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  }

  [[gnu::always_inline]] inline void take_words(const std::uint8_t*& next) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __mmask16 low = _mm512_cmplt_epu32_mask(x[v], _mm512_set1_epi32(static_cast<int>(rans_least)));
      const __m512i words = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(next)));
      const __m512i taken = _mm512_maskz_expand_epi32(low, words);
      x[v] = _mm512_mask_or_epi32(x[v], low, _mm512_maskz_slli_epi32(0xffff, x[v], 16), taken);
      next += 2 * __builtin_popcount(low);
    }
  }

  template <bool Masked>
  [[gnu::always_inline]] inline symbols take_symbols(const entries& e, int active, const std::uint8_t*& next) {
    symbols r;
    const __m512i byte = _mm512_set1_epi32(255), four = _mm512_set1_epi32(15);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512i bucket = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, x[v], 8), four);
      const __m512i low = _mm512_and_si512(x[v], byte);
      const __m512i entry = _mm512_maskz_permutexvar_epi32(0xffff, bucket, e.buckets);
      const __mmask16 aliased = _mm512_cmpge_epu32_mask(low, _mm512_and_si512(entry, byte));
      r.s[v] = _mm512_mask_and_epi32(bucket, aliased, _mm512_maskz_srli_epi32(0xffff, entry, 8), four);
      const __m512i place = _mm512_mask_add_epi32(low, aliased, low, _mm512_maskz_srai_epi32(0xffff, entry, 16));
      const __m512i frequency = _mm512_maskz_permutexvar_epi32(0xffff, r.s[v], e.frequencies);
      const __m512i high = _mm512_maskz_srli_epi32(0xffff, x[v], rans_bits);
      const __m512i after = _mm512_add_epi32(_mm512_mullo_epi32(frequency, high), place);
      x[v] = Masked ? _mm512_mask_mov_epi32(x[v], among(active, v), after) : after;
    }
    take_words(next);
    return r;
  }

  template <bool Masked>
  [[gnu::always_inline]] inline void take_raw_bits(const entries& e, int bits, int active, const std::uint8_t*& next, const symbols& s,
                                                   std::int16_t* out) {
    const __m128i count = _mm_cvtsi32_si128(bits);
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512i high = _mm512_add_epi32(_mm512_maskz_sll_epi32(0xffff, s.s[v], count), e.offset);
      store_words(_mm512_add_epi32(high, _mm512_and_si512(x[v], mask)), out + 16 * v);
      const __m512i after = _mm512_maskz_srl_epi32(0xffff, x[v], count);
      x[v] = Masked ? _mm512_mask_mov_epi32(x[v], among(active, v), after) : after;
    }
    take_words(next);
  }
};

}  // namespace kvx::simd::avx512
