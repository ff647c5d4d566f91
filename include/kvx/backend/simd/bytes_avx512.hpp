// Vectors of 64 bytes: AVX-512. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512 {

/// See bytes_avx2.hpp.
struct bytes {
  static constexpr int width = 64;

  using b = __m512i;
  using w = __m512i;

  [[gnu::always_inline]] static inline b load(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  [[gnu::always_inline]] static inline void store(std::uint8_t* p, b x) { _mm512_storeu_si512(p, x); }
  [[gnu::always_inline]] static inline b set(std::uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  [[gnu::always_inline]] static inline w set_words(std::int16_t x) { return _mm512_set1_epi16(x); }
  [[gnu::always_inline]] static inline b table(const std::uint8_t* p) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  [[gnu::always_inline]] static inline b look_up(b entries, b i) { return _mm512_shuffle_epi8(entries, i); }
  [[gnu::always_inline]] static inline b low_bits(b x) { return _mm512_and_si512(x, set(15)); }
  [[gnu::always_inline]] static inline b high_bits(b x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), set(15)); }
  template <int N>
  [[gnu::always_inline]] static inline b shift_right(b x) {
    return _mm512_and_si512(_mm512_srli_epi16(x, N), set(255 >> N));
  }
  [[gnu::always_inline]] static inline b bits_and(b x, b y) { return _mm512_and_si512(x, y); }
  [[gnu::always_inline]] static inline b bits_xor(b x, b y) { return _mm512_xor_si512(x, y); }
  [[gnu::always_inline]] static inline b add(b x, b y) { return _mm512_add_epi8(x, y); }
  [[gnu::always_inline]] static inline b minus_at_least_0(b x, b y) { return _mm512_subs_epu8(x, y); }
  [[gnu::always_inline]] static inline b smaller(b x, b y) { return _mm512_min_epu8(x, y); }
  [[gnu::always_inline]] static inline b larger(b x, b y) { return _mm512_max_epu8(x, y); }
  [[gnu::always_inline]] static inline b zero_where_zero(b x, b y) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(y, y), x); }
  [[gnu::always_inline]] static inline b count(b sum, b x, b y, b bit) {
    return _mm512_mask_add_epi8(sum, _mm512_test_epi8_mask(_mm512_or_si512(x, y), bit), sum, set(1));
  }
  [[gnu::always_inline]] static inline w first_words(b y, b x) { return _mm512_unpacklo_epi8(y, x); }
  [[gnu::always_inline]] static inline w second_words(b y, b x) { return _mm512_unpackhi_epi8(y, x); }
  [[gnu::always_inline]] static inline w add_words(w x, w y) { return _mm512_adds_epi16(x, y); }
  [[gnu::always_inline]] static inline w subtract_words(w x, w y) { return _mm512_subs_epi16(x, y); }
  [[gnu::always_inline]] static inline w larger_words(w x, w y) { return _mm512_max_epi16(x, y); }
  [[gnu::always_inline]] static inline w times_4(w x) { return _mm512_slli_epi16(x, 2); }
  [[gnu::always_inline]] static inline w shift_words(w x, int n) { return _mm512_srl_epi16(x, _mm_cvtsi32_si128(n)); }
  [[gnu::always_inline]] static inline w multiply(w x, w y) { return _mm512_mulhrs_epi16(x, y); }
  [[gnu::always_inline]] static inline w multiply_high(w x, w y) { return _mm512_mulhi_epu16(x, y); }
  using i = __m512i;
  [[gnu::always_inline]] static inline b set_quads(std::int32_t four) { return _mm512_set1_epi32(four); }
  [[gnu::always_inline]] static inline w products(b x, b y) { return _mm512_maddubs_epi16(x, y); }
  [[gnu::always_inline]] static inline w plus(w x, w y) { return _mm512_add_epi16(x, y); }
  [[gnu::always_inline]] static inline i no_ints() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static inline i add_ints(i x, i y) { return _mm512_add_epi32(x, y); }
  [[gnu::always_inline]] static inline i pairs(w x) { return _mm512_madd_epi16(x, set_words(1)); }
  [[gnu::always_inline]] static inline void store_scaled(i x, float unit, float* out) {
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(0xffff, x), _mm512_set1_ps(unit)));
  }
  [[gnu::always_inline]] static inline b clamp(w first, w second) { return _mm512_packus_epi16(first, second); }

  [[gnu::always_inline]] static inline void compare(const std::uint8_t* scores, std::uint8_t level, std::uint64_t& above,
                                                    std::uint64_t& equal) {
    const b x = load(scores);
    above = _mm512_cmpgt_epu8_mask(x, set(level));
    equal = _mm512_cmpeq_epu8_mask(x, set(level));
  }
  [[gnu::always_inline]] static inline std::int32_t* write(std::uint64_t taken, std::int32_t first, std::int32_t* out) {
    __m512i ids = _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    for (int quarter = 0; quarter < 4; ++quarter, taken >>= 16) {
      const auto mask = static_cast<__mmask16>(taken);
      const int n = __builtin_popcount(mask);
      _mm512_mask_storeu_epi32(out, static_cast<__mmask16>((1u << n) - 1), _mm512_maskz_compress_epi32(mask, ids));
      ids = _mm512_add_epi32(ids, _mm512_set1_epi32(16));
      out += n;
    }
    return out;
  }
};

using word_lanes = avx2::word_lanes;

struct dot_lanes {
  __m512 all;
  [[gnu::always_inline]] inline void clear() { all = _mm512_setzero_ps(); }
  [[gnu::always_inline]] inline void add_products(const dot_lanes& x, const float* q) {
    all = _mm512_fmadd_ps(x.all, _mm512_loadu_ps(q), all);
  }
  [[gnu::always_inline]] static inline dot_lanes load(const bf16* p) {
    const __m512i x = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, x, 16))};
  }
  /// The sums of four, side by side.
  [[gnu::always_inline]] static inline void sum4(const dot_lanes* x, float* sums) {
    __m128 four[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const __m256 high = _mm512_maskz_extractf32x8_ps(0xff, x[g].all, 1);
      const __m256 eight = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, x[g].all, 0), high);
      four[g] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    _mm_storeu_ps(sums, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
  }
  [[gnu::always_inline]] inline float sum() const {
    const __m256 high = _mm512_maskz_extractf32x8_ps(0xff, all, 1);
    const __m256 eight = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, all, 0), high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace kvx::simd::avx512
