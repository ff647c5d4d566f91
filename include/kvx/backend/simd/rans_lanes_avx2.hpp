// The states of 32 rANS lanes in four vectors: AVX2. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

/// Lane i of 32 is element i % 8 of vector i / 8. Between packing and unpacking, bytes and words of four, or two, vectors lie in the order
/// that packing gives them: elements 0..3 of each in the lower half, 4..7 in the upper.
struct rans_vectors {
  __m256i x[4];

  /// What the symbols of a component are looked up in.
  struct entries {
    __m256i dividers, aliases, shifts_low, shifts_high, frequencies_low, frequencies_high, escape, offset;
    [[gnu::always_inline]] explicit inline entries(const symbol_lookup& t)
        : dividers(table(t.dividers)),
          aliases(table(t.aliases)),
          shifts_low(table(t.shifts_low)),
          shifts_high(table(t.shifts_high)),
          frequencies_low(table(t.frequencies_low)),
          frequencies_high(table(t.frequencies_high)),
          escape(_mm256_set1_epi8(static_cast<char>(t.escape))),
          offset(_mm256_set1_epi16(t.offset)) {}
    [[gnu::always_inline]] static inline __m256i table(const std::uint8_t* p) {
      return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    }
  };

  /// The symbols of a step, a byte each.
  struct symbols {
    __m256i s;
    [[gnu::always_inline]] inline void store(const entries& e, std::int16_t* out) const {
      const __m256i zero = _mm256_setzero_si256();
      store_words(_mm256_add_epi16(_mm256_unpacklo_epi8(s, zero), e.offset), out);
      store_words(_mm256_add_epi16(_mm256_unpackhi_epi8(s, zero), e.offset), out + 16);
    }
    /// Bit i: lane i holds the escape.
    [[gnu::always_inline]] inline std::uint32_t equal_to(const entries& e) const {
      const auto packed = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(s, e.escape)));
      if (packed == 0) [[likely]]
        return 0;
      std::uint32_t lanes_of = 0;
      for (int v = 0; v < 4; ++v) lanes_of |= ((packed >> 4 * v & 15) | (packed >> (16 + 4 * v) & 15) << 4) << 8 * v;
      return lanes_of;
    }
  };

  [[gnu::always_inline]] static inline rans_vectors load(const std::uint32_t* p) {
    rans_vectors r;
    for (int v = 0; v < 4; ++v) r.x[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8 * v));
    return r;
  }
  [[gnu::always_inline]] inline void store(std::uint32_t* p) const {
    for (int v = 0; v < 4; ++v) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * v), x[v]);
  }

  [[gnu::always_inline]] static inline void store_words(__m256i packed, std::int16_t* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(packed, 0xd8));
  }

  /// Which elements of vector v are among the first `active` lanes.
  [[gnu::always_inline]] static inline __m256i among(int active, int v) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(active - 8 * v), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  /// States below 2^16 take in a word, in the order of the lanes; those of idle lanes never are.
  [[gnu::always_inline]] inline void take_words(const std::uint8_t*& next) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x[v], 16), _mm256_setzero_si256());
      const auto taken = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(low)));
      const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next)));
      const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(orders_of_words.of[taken])));
      const __m256i longer = _mm256_or_si256(_mm256_slli_epi32(x[v], 16), _mm256_permutevar8x32_epi32(words, order));
      x[v] = _mm256_blendv_epi8(x[v], longer, low);
      next += 2 * __builtin_popcount(taken);
    }
  }

  template <bool Masked>
  [[gnu::always_inline]] inline symbols take_symbols(const entries& e, int active, const std::uint8_t*& next) {
    const __m256i zero = _mm256_setzero_si256(), low_byte = _mm256_set1_epi16(255);
    __m256i slot[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) slot[v] = _mm256_and_si256(x[v], _mm256_set1_epi32((1 << rans_bits) - 1));
    const __m256i slots01 = _mm256_packus_epi32(slot[0], slot[1]), slots23 = _mm256_packus_epi32(slot[2], slot[3]);
    const __m256i low = _mm256_packus_epi16(_mm256_and_si256(slots01, low_byte), _mm256_and_si256(slots23, low_byte));
    const __m256i bucket = _mm256_packus_epi16(_mm256_srli_epi16(slots01, 8), _mm256_srli_epi16(slots23, 8));
    const __m256i aliased = _mm256_cmpeq_epi8(_mm256_max_epu8(low, _mm256_shuffle_epi8(e.dividers, bucket)), low);
    const __m256i s = _mm256_blendv_epi8(bucket, _mm256_shuffle_epi8(e.aliases, bucket), aliased);
    const __m256i shift_low = _mm256_and_si256(aliased, _mm256_shuffle_epi8(e.shifts_low, bucket));
    const __m256i shift_high = _mm256_and_si256(aliased, _mm256_shuffle_epi8(e.shifts_high, bucket));
    const __m256i frequency_low = _mm256_shuffle_epi8(e.frequencies_low, s), frequency_high = _mm256_shuffle_epi8(e.frequencies_high, s);
    const __m256i frequency01 = _mm256_unpacklo_epi8(frequency_low, frequency_high);
    const __m256i frequency23 = _mm256_unpackhi_epi8(frequency_low, frequency_high);
    const __m256i place01 = _mm256_add_epi16(_mm256_unpacklo_epi8(low, zero), _mm256_unpacklo_epi8(shift_low, shift_high));
    const __m256i place23 = _mm256_add_epi16(_mm256_unpackhi_epi8(low, zero), _mm256_unpackhi_epi8(shift_low, shift_high));
    const __m256i frequency[4] = {_mm256_unpacklo_epi16(frequency01, zero), _mm256_unpackhi_epi16(frequency01, zero),
                                  _mm256_unpacklo_epi16(frequency23, zero), _mm256_unpackhi_epi16(frequency23, zero)};
    const __m256i place[4] = {_mm256_unpacklo_epi16(place01, zero), _mm256_unpackhi_epi16(place01, zero),
                              _mm256_unpacklo_epi16(place23, zero), _mm256_unpackhi_epi16(place23, zero)};
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i after = _mm256_add_epi32(_mm256_mullo_epi32(frequency[v], _mm256_srli_epi32(x[v], rans_bits)), place[v]);
      x[v] = Masked ? _mm256_blendv_epi8(x[v], after, among(active, v)) : after;
    }
    take_words(next);
    return {s};
  }

  /// The lowest bits of each state are those of the value.
  template <bool Masked>
  [[gnu::always_inline]] inline void take_raw_bits(const entries& e, int bits, int active, const std::uint8_t*& next, const symbols& s,
                                                   std::int16_t* out) {
    const __m128i count = _mm_cvtsi32_si128(bits);
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1), zero = _mm256_setzero_si256();
    __m256i raw[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      raw[v] = _mm256_and_si256(x[v], mask);
      const __m256i after = _mm256_srl_epi32(x[v], count);
      x[v] = Masked ? _mm256_blendv_epi8(x[v], after, among(active, v)) : after;
    }
    const __m256i high01 = _mm256_sll_epi16(_mm256_unpacklo_epi8(s.s, zero), count);
    const __m256i high23 = _mm256_sll_epi16(_mm256_unpackhi_epi8(s.s, zero), count);
    store_words(_mm256_add_epi16(_mm256_add_epi16(high01, e.offset), _mm256_packus_epi32(raw[0], raw[1])), out);
    store_words(_mm256_add_epi16(_mm256_add_epi16(high23, e.offset), _mm256_packus_epi32(raw[2], raw[3])), out + 16);
    take_words(next);
  }
};

}  // namespace kvx::simd::avx2
