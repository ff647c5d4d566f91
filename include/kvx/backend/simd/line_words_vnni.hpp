// What page_kernels.hpp adds up with under AVX-512 VNNI. Included inside the target region of dispatch.hpp.

namespace kvx::simd::avx512_vnni {

using bytes = avx512::bytes;
using lanes = avx512::lanes;
using avx512::at_most;

template <class Table>
inline constexpr Table functions = {};

/// No word overflows: sums are of 32 bits from the first product on.
inline constexpr int lines_in_words = 1;

/// See line_words.hpp. Two sums, since one would wait for itself.
struct line_sums {
  bytes::i low_total, high_total;
  [[gnu::always_inline]] inline void clear() { low_total = high_total = bytes::no_ints(); }
  [[gnu::always_inline]] inline void add(bytes::b low, bytes::b high, std::int32_t first, std::int32_t second) {
    low_total = _mm512_dpbusd_epi32(low_total, low, bytes::set_quads(first));
    high_total = _mm512_dpbusd_epi32(high_total, high, bytes::set_quads(second));
  }
  [[gnu::always_inline]] inline void widen() {}
  [[gnu::always_inline]] inline bytes::i whole() const { return bytes::add_ints(low_total, high_total); }
};

}  // namespace kvx::simd::avx512_vnni
