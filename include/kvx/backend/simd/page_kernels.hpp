// The kernels of page_table, once per instruction set: included by dispatch.hpp behind kernels.hpp and line_words.hpp, by the same rules.

/// Groups of pages between the one that is summed and the one that is asked for.
inline constexpr int groups_ahead = 8;

template <int Q>
inline void group_sums(const std::int32_t* q, int heads, const page_lines& in, const std::int32_t* pages, const std::int32_t* next,
                       const float* units, float* out, std::int64_t pitch) {
  for (int v = 0; v < 64; v += bytes::width) {
    line_sums sums[Q];
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) sums[g].clear();
    const std::int32_t* words = q;
    for (int page = 0, m = 0; m < in.count; ++page) {
      const std::uint8_t *line = in.at(pages[page]) + v, *ahead = in.at(next[page]);
      for (int i = 0; i < in.each && m < in.count; ++i, ++m, line += 64, ahead += 64, words += 2 * heads) {
        __builtin_prefetch(ahead);
        const bytes::b x = bytes::load(line), low = bytes::low_bits(x), high = bytes::high_bits(x);
#pragma GCC unroll 4
        for (int g = 0; g < Q; ++g) sums[g].add(low, high, words[g], words[heads + g]);
        if ((m + 1) % lines_in_words == 0) {
#pragma GCC unroll 4
          for (int g = 0; g < Q; ++g) sums[g].widen();
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < Q; ++g) bytes::store_scaled(sums[g].whole(), units[g], out + g * pitch + v / 4);
  }
}

template <int Q>
inline void page_sums_of(const std::int32_t* q, int heads, const page_lines& in, const std::int32_t* pages, std::int64_t groups,
                         const float* units, float* out, std::int64_t pitch) {
  for (std::int64_t i = 0; i < groups; ++i, pages += pages_of_group, out += pages_of_group) {
    const std::int32_t* const next = i + groups_ahead < groups ? pages + groups_ahead * pages_of_group : pages;
    group_sums<Q>(q, heads, in, pages, next, units, out, pitch);
  }
}

inline void page_sums(const std::int32_t* q, int heads, const page_lines& in, const std::int32_t* pages, std::int64_t groups,
                      const float* units, float* out, std::int64_t pitch) {
  for (int g = 0; g < heads;) {
    float* const to = out + g * pitch;
    const int left = heads - g;
    if (left >= 4 && lanes::most_queries >= 4) {
      page_sums_of<at_most(4)>(q + g, heads, in, pages, groups, units + g, to, pitch);
      g += 4;
    } else if (left >= 2 && lanes::most_queries >= 2) {
      page_sums_of<at_most(2)>(q + g, heads, in, pages, groups, units + g, to, pitch);
      g += 2;
    } else {
      page_sums_of<1>(q + g, heads, in, pages, groups, units + g, to, pitch);
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
