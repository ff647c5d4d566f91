// The kernels of page_table, once per instruction set: included by dispatch.hpp behind kernels.hpp, under the same rules.

/// Lines whose products fit signed words: four, of two half bytes of 15 and two products of 127 each.
inline constexpr int lines_in_words = 4;

template <int Q>
inline void page_sums_of(const std::int32_t* q, int heads, const std::uint8_t* const* lines, const std::uint8_t* const* next, int count,
                         const float* units, float* out, std::int64_t pitch) {
  for (int v = 0; v < 64; v += bytes::width) {
    bytes::i total[Q];                                                                              // total (Q, pages)
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) total[g] = bytes::no_ints();
    for (int l = 0; l < count; l += lines_in_words) {
      bytes::w part[Q];
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) part[g] = bytes::set_words(0);
      for (int m = l; m < l + lines_in_words && m < count; ++m) {
        __builtin_prefetch(next[m]);
        const bytes::b x = bytes::load(lines[m] + v), low = bytes::low_bits(x), high = bytes::high_bits(x);
        const std::int32_t* const words = q + std::int64_t{2} * m * heads;
#pragma GCC unroll 4
        for (int g = 0; g < Q; ++g) {
          const bytes::w first = bytes::products(low, bytes::set_quads(words[g]));
          part[g] = bytes::plus(part[g], bytes::plus(first, bytes::products(high, bytes::set_quads(words[heads + g]))));
        }
      }
#pragma GCC unroll 4
      for (int g = 0; g < Q; ++g) total[g] = bytes::add_ints(total[g], bytes::pairs(part[g]));
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) bytes::store_scaled(total[g], units[g], out + g * pitch + v / 4);
  }
}

inline void page_sums(const std::int32_t* q, int heads, const std::uint8_t* const* lines, const std::uint8_t* const* next, int count,
                      const float* units, float* out, std::int64_t pitch) {
  for (int g = 0; g < heads;) {
    float* const to = out + g * pitch;
    const int left = heads - g;
    if (left >= 4 && lanes::most_queries >= 4) {
      page_sums_of<at_most(4)>(q + g, heads, lines, next, count, units + g, to, pitch);
      g += 4;
    } else if (left >= 2 && lanes::most_queries >= 2) {
      page_sums_of<at_most(2)>(q + g, heads, lines, next, count, units + g, to, pitch);
      g += 2;
    } else {
      page_sums_of<1>(q + g, heads, lines, next, count, units + g, to, pitch);
      ++g;
    }
  }
}

inline void best_of_heads(const float* x, std::int64_t pitch, int heads, std::int64_t n, const float* most, float* out) {
  std::int64_t i = 0;
  for (; i + lanes::width <= n; i += lanes::width) {
    lanes::f best = lanes::sub(lanes::load(x + i), lanes::set(most[0]));
    for (int g = 1; g < heads; ++g) best = lanes::max(best, lanes::sub(lanes::load(x + g * pitch + i), lanes::set(most[g])));
    lanes::store(out + i, best);
  }
  for (; i < n; ++i) {
    out[i] = x[i] - most[0];
    for (int g = 1; g < heads; ++g) {
      const float y = x[g * pitch + i] - most[g];
      out[i] = y > out[i] ? y : out[i];
    }
  }
}

template <>
inline constexpr page_table functions<page_table> = {page_sums, best_of_heads};
