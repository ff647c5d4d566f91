#pragma once
// The kernels that look at the codes of many pages at once.

#include <cstdint>

namespace kvx::simd {

/// Pages whose codes lie side by side in a line.
inline constexpr int pages_of_group = 16;

/// Where the lines of pages lie (index/page_codes.hpp): those of a group in the columns of its pages, `each` in one, `count` in all.
struct page_lines {
  const std::uint8_t* codes = nullptr;
  std::int64_t pitch = 0;
  int each = 1;
  int count = 0;

  const std::uint8_t* at(std::int32_t page) const { return codes + page * pitch; }
};

/// Kernels of the first look at pages. Every one gives the same bits in every instruction set.
struct page_table {
  /// out[g][i] = units[g] sum_l sum_j q_g[l][j] n_i[l][j] for the pages of some groups: n the half bytes of a line, q of eight bits, four
  /// to a word: (lines, 2, heads). Sums are whole; the product is rounded once.   pages (groups, pages_of_group), out (heads, pitch)
  void (*page_sums)(const std::int32_t* q, int heads, const page_lines& in, const std::int32_t* pages, std::int64_t groups,
                    const float* units, float* out, std::int64_t pitch);
  /// out[i] = the largest over heads of x[g][i] - most[g].   x (heads, pitch)
  void (*best_of_heads)(const float* x, std::int64_t pitch, int heads, std::int64_t n, const float* most, float* out);
};

}  // namespace kvx::simd
