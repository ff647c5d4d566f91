// Vectors of 32 bytes: AVX2. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx2 {

/// Bytes and words of a block of keys. Words come in pairs of vectors, in the order that unpacking bytes gives them.
struct bytes {
  static constexpr int width = 32;

  using b = __m256i;  ///< unsigned bytes
  using w = __m256i;  ///< signed words

  [[gnu::always_inline]] static inline b load(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  [[gnu::always_inline]] static inline void store(std::uint8_t* p, b x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  [[gnu::always_inline]] static inline b set(std::uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
  [[gnu::always_inline]] static inline w set_words(std::int16_t x) { return _mm256_set1_epi16(x); }
  [[gnu::always_inline]] static inline b table(const std::uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// table[i], 0 where i has its top bit set; other i are below 16.
  [[gnu::always_inline]] static inline b look_up(b entries, b i) { return _mm256_shuffle_epi8(entries, i); }
  [[gnu::always_inline]] static inline b low_bits(b x) { return _mm256_and_si256(x, set(15)); }
  [[gnu::always_inline]] static inline b high_bits(b x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), set(15)); }
  template <int N>
  [[gnu::always_inline]] static inline b shift_right(b x) {
    return _mm256_and_si256(_mm256_srli_epi16(x, N), set(255 >> N));
  }
  [[gnu::always_inline]] static inline b bits_and(b x, b y) { return _mm256_and_si256(x, y); }
  [[gnu::always_inline]] static inline b bits_xor(b x, b y) { return _mm256_xor_si256(x, y); }
  [[gnu::always_inline]] static inline b add(b x, b y) { return _mm256_add_epi8(x, y); }
  [[gnu::always_inline]] static inline b minus_at_least_0(b x, b y) { return _mm256_subs_epu8(x, y); }
  [[gnu::always_inline]] static inline b smaller(b x, b y) { return _mm256_min_epu8(x, y); }
  [[gnu::always_inline]] static inline b larger(b x, b y) { return _mm256_max_epu8(x, y); }
  /// x, but 0 where y is 0.
  [[gnu::always_inline]] static inline b zero_where_zero(b x, b y) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi8(y, _mm256_setzero_si256()), x);
  }
  /// count + 1 where (x | y) & bit is not 0; bit has one bit in every byte.
  [[gnu::always_inline]] static inline b count(b sum, b x, b y, b bit) {
    return _mm256_sub_epi8(sum, _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_or_si256(x, y), bit), bit));
  }
  /// Words whose high bytes are those of x, and low bytes those of y.
  [[gnu::always_inline]] static inline w first_words(b y, b x) { return _mm256_unpacklo_epi8(y, x); }
  [[gnu::always_inline]] static inline w second_words(b y, b x) { return _mm256_unpackhi_epi8(y, x); }
  [[gnu::always_inline]] static inline w add_words(w x, w y) { return _mm256_adds_epi16(x, y); }
  [[gnu::always_inline]] static inline w subtract_words(w x, w y) { return _mm256_subs_epi16(x, y); }
  [[gnu::always_inline]] static inline w larger_words(w x, w y) { return _mm256_max_epi16(x, y); }
  [[gnu::always_inline]] static inline w times_4(w x) { return _mm256_slli_epi16(x, 2); }
  [[gnu::always_inline]] static inline w shift_words(w x, int n) { return _mm256_srl_epi16(x, _mm_cvtsi32_si128(n)); }
  /// (x y + 2^14) >> 15.
  [[gnu::always_inline]] static inline w multiply(w x, w y) { return _mm256_mulhrs_epi16(x, y); }
  /// (x y) >> 16 of unsigned words.
  [[gnu::always_inline]] static inline w multiply_high(w x, w y) { return _mm256_mulhi_epu16(x, y); }
  using i = __m256i;  ///< signed numbers of 32 bits
  [[gnu::always_inline]] static inline b set_quads(std::int32_t four) { return _mm256_set1_epi32(four); }
  /// Sums of two neighbouring products, x unsigned and y signed.
  [[gnu::always_inline]] static inline w products(b x, b y) { return _mm256_maddubs_epi16(x, y); }
  /// Of words whose sum is one.
  [[gnu::always_inline]] static inline w plus(w x, w y) { return _mm256_add_epi16(x, y); }
  [[gnu::always_inline]] static inline i no_ints() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static inline i add_ints(i x, i y) { return _mm256_add_epi32(x, y); }
  /// Sums of two neighbouring words.
  [[gnu::always_inline]] static inline i pairs(w x) { return _mm256_madd_epi16(x, set_words(1)); }
  [[gnu::always_inline]] static inline void store_scaled(i x, float unit, float* out) {
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(unit)));
  }
  /// Both halves as bytes, 0..255.
  [[gnu::always_inline]] static inline b clamp(w first, w second) { return _mm256_packus_epi16(first, second); }

  /// Bit t: scores[t] > level, and scores[t] == level. 64 tokens.
  [[gnu::always_inline]] static inline void compare(const std::uint8_t* scores, std::uint8_t level, std::uint64_t& above,
                                                    std::uint64_t& equal) {
    above = equal = 0;
    for (int half = 0; half < 2; ++half) {
      const b x = load(scores + 32 * half);
      const b same = _mm256_cmpeq_epi8(x, set(level));
      const b at_most = _mm256_cmpeq_epi8(_mm256_max_epu8(x, set(level)), set(level));
      above |= std::uint64_t{~static_cast<std::uint32_t>(_mm256_movemask_epi8(at_most))} << 32 * half;
      equal |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(same))} << 32 * half;
    }
  }
  /// first + t for every bit t of `taken`.
  [[gnu::always_inline]] static inline std::int32_t* write(std::uint64_t taken, std::int32_t first, std::int32_t* out) {
    for (; taken != 0; taken &= taken - 1) *out++ = first + __builtin_ctzll(taken);
    return out;
  }
};

/// Four words from doubles.
struct word_lanes {
  [[gnu::always_inline]] static inline void four(const float* dots, const double* scales, const double* offsets, std::int16_t* words) {
    const __m256d x = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(dots)), _mm256_loadu_pd(scales), _mm256_loadu_pd(offsets));
    const __m256d inside = _mm256_min_pd(_mm256_max_pd(x, _mm256_set1_pd(-32768)), _mm256_set1_pd(32767));  // NaN gives the smallest
    const __m256d half = _mm256_or_pd(_mm256_and_pd(inside, _mm256_set1_pd(-0.0)), _mm256_set1_pd(0.5));
    const __m128i whole = _mm256_cvttpd_epi32(_mm256_add_pd(inside, half));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(words), _mm_packs_epi32(whole, whole));
  }
};

/// Sixteen float lanes of the page dots.
struct dot_lanes {
  __m256 low, high;
  [[gnu::always_inline]] inline void clear() { low = high = _mm256_setzero_ps(); }
  [[gnu::always_inline]] inline void add_products(const dot_lanes& x, const float* q) {
    low = _mm256_fmadd_ps(x.low, _mm256_loadu_ps(q), low);
    high = _mm256_fmadd_ps(x.high, _mm256_loadu_ps(q + 8), high);
  }
  [[gnu::always_inline]] static inline dot_lanes load(const bf16* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i first = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
    const __m256i second = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(first, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(second, 16))};
  }
  /// The sums of four, side by side.
  [[gnu::always_inline]] static inline void sum4(const dot_lanes* x, float* sums) {
    __m128 four[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const __m256 eight = _mm256_add_ps(x[g].low, x[g].high);
      four[g] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 ab = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
    const __m128 cd = _mm_add_ps(_mm_movelh_ps(four[2], four[3]), _mm_movehl_ps(four[3], four[2]));
    _mm_storeu_ps(sums, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
  }
  [[gnu::always_inline]] inline float sum() const {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace kvx::simd::avx2
