#pragma once
// The kernels that look at the codes of many pages at once.

#include <cstdint>

namespace kvx::simd {

/// Lines of one group of pages at most.
inline constexpr int most_page_lines = 576 / 8;

/// Kernels of the first look at pages. Every one gives the same bits in every instruction set.
struct page_table {
  /// out[g][i] = units[g] sum_l sum_j q_g[l][j] n_i[l][j] for the 16 pages of a group: n the half bytes of a line (page_codes.hpp), q of
  /// eight bits, four to a word: (lines, 2, heads). Sums are whole; the product is rounded once. `next` is asked for.
  void (*page_sums)(const std::int32_t* q, int heads, const std::uint8_t* const* lines, const std::uint8_t* const* next, int count,
                    const float* units, float* out, std::int64_t pitch);
  /// out[i] = the largest over heads of x[g][i] - most[g].   x (heads, pitch)
  void (*best_of_heads)(const float* x, std::int64_t pitch, int heads, std::int64_t n, const float* most, float* out);
};

}  // namespace kvx::simd
