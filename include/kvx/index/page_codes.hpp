#pragma once
// Codes of the means of semantic pages: four bits a coordinate, by which a search of a long zone proposes the pages it looks at.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/math.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/sketch/whole_query.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Pages that are coded side by side: one for each lane of four bytes of a line.
inline constexpr int coded_pages = 16;

/// Coordinates of one line.
inline constexpr int line_dims = 8;

/// Where the codes of the pages of one head lie.
///
/// what        x = rotate(mean - centre), centre the mean of the means of the sequence's first block; a coordinate is the whole number
///             of steps that it lies above -8 steps, 0 to 15, and stands for half a step more. A step is the root mean square of the
///             coordinates of the first block: one for the whole sequence, so that sums compare with each other as they are. Where all
///             means of the first block are the same, signs are left. The code of a page without members is that of the centre
/// shapes      (lines) of 64 bytes for every coded_pages pages of a block; in the four bytes of page i of line l the low half of byte k is
///             coordinate 8 l + k, the high half 8 l + 4 + k; 8 beyond D. Lines lie in the column blocks of their pages, per_page in each
/// source      ours; docs/icecache.md
struct page_code_lines {
  int dim = 0;

  KVX_HD constexpr int lines() const { return (dim + line_dims - 1) / line_dims; }
  KVX_HD constexpr int per_page() const { return (lines() + coded_pages - 1) / coded_pages; }
  /// Lines that are written: those that there is room for.
  KVX_HD constexpr int written() const { return per_page() * coded_pages; }
  KVX_HD constexpr std::int64_t block_bytes() const { return std::int64_t{64} * per_page(); }

  /// Line l of a group of pages.   pages (coded_pages): where their columns lie
  KVX_HD constexpr std::byte* line(const column_array& codes, std::int64_t head, const std::int32_t* pages, int l) const {
    return codes.at(pages[l / per_page()], head) + std::int64_t{64} * (l % per_page());
  }
};
static_assert(page_code_lines{128}.block_bytes() == 64 && page_code_lines{576}.block_bytes() == 320 && page_code_lines{20}.lines() == 3);

/// What coordinates are multiplied with before they are rounded: 1 / step.
///
/// step        the root mean square of coordinates; the square root is the caller's, rounded to nearest
KVX_HD constexpr float steps_of(double step) {
  const double inverse = step > 0 ? 1 / step : static_cast<double>(largest_float);
  return inverse < static_cast<double>(largest_float) ? static_cast<float>(inverse) : largest_float;
}

/// The code of one coordinate. The product of two floats is exact in double.
KVX_HD constexpr int coordinate_code(float x, float inverse) {
  const double steps = static_cast<double>(x) * static_cast<double>(inverse) + 8;
  return !(steps >= 0) ? 0 : steps >= 15 ? 15 : static_cast<int>(steps);
}
static_assert(coordinate_code(0, 1) == 8 && coordinate_code(-.1f, 1) == 7 && coordinate_code(9, 1) == 15 && coordinate_code(-9, 1) == 0);

/// Four components of a rotated query, from `first` on, in whole numbers: what is multiplied with half of a line; 0 beyond D.
KVX_HD constexpr std::int32_t query_word(const float* x, int dim, int first, float inverse) {
  std::uint32_t bits = 0;
  for (int k = 0; k < 4 && first + k < dim; ++k)
    bits |= std::uint32_t{static_cast<std::uint8_t>(whole_component(x[first + k], inverse))} << 8 * k;
  return static_cast<std::int32_t>(bits);
}
static_assert([] {
  constexpr float x[6] = {0, 0, 0, 0, 1, -2};
  return query_word(x, 6, 4, 1) == 0xfe01;
}());

/// Whether a query has a say: it is finite, not zero, and no sum over codes of 576 coordinates, nor the difference of two, leaves the
/// floats.
KVX_HD constexpr bool has_a_say(const query_scale& q) { return q.unit > 0 && q.unit < 0x1p105f; }
static_assert(has_a_say({1, 1}) && !has_a_say({0, 0}) && !has_a_say({0x1p105f, 1}));
static_assert(15.0 * 127 * 576 * 0x1p105 * 2 < static_cast<double>(largest_float));

}  // namespace kvx
