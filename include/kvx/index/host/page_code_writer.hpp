#pragma once
// The codes of the means of semantic pages, written block after block on the host.

#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_codes.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Writes the codes of blocks whose means are there, those of the sequence's first block among them.
///
/// exactness   sums in double, in the order of the pages: the same codes everywhere
class page_code_writer {
 public:
  page_code_writer(scratch_parts& s, int dim) : lines_{dim}, centre_(s.take<float>(dim)), rotated_(s.take<float>(dim)) {}

  template <class E>
  void write(const dci_shape& shape, const dci_head<E>& of, std::int64_t block) {
    const int pages = shape.block / of.rows.page_tokens, dim = lines_.dim;
    if (!ready_) begin(shape, of, pages);
    for (int j = 0; j < pages; ++j) {
      const std::int64_t page = block * pages + j;
      std::fill_n(rotated_, dim, 0.0f);
      if (of.packed(shape, page).count() > 0) {
        const bf16* const mean = of.mean_of(page);
        for (int d = 0; d < dim; ++d) rotated_[d] = to_float(mean[d]) - centre_[d];
        rotate(rotated_, static_cast<std::size_t>(dim), shape.seed);
      }
      const std::int32_t* const group = of.column_pages + page - j % coded_pages;
      for (int l = 0; l < lines_.written(); ++l) {
        std::byte* const to = lines_.line(of.codes, of.head, group, l) + 4 * (j % coded_pages);
        for (int k = 0; k < 4; ++k) to[k] = static_cast<std::byte>(code(line_dims * l + k) | code(line_dims * l + 4 + k) << 4);
      }
    }
  }

 private:
  int code(int d) const { return d < lines_.dim ? coordinate_code(rotated_[d], inverse_) : 8; }

  /// Centre and step, from the first block.
  template <class E>
  void begin(const dci_shape& shape, const dci_head<E>& of, int pages) {
    const int dim = lines_.dim;
    double squares = 0;
    std::int64_t count = 0;
    const auto each = [&](int d, const auto& visit) {
      for (int j = 0; j < pages; ++j) {
        if (of.packed(shape, j).count() > 0) visit(to_float(of.mean_of(j)[d]));
      }
    };
    for (int d = 0; d < dim; ++d) {
      double sum = 0;
      std::int64_t found = 0;
      each(d, [&](float x) {
        sum += static_cast<double>(x);
        ++found;
      });
      centre_[d] = found > 0 ? static_cast<float>(sum / static_cast<double>(found)) : 0;
      double own = 0;
      each(d, [&](float x) {
        const auto y = static_cast<double>(x - centre_[d]);
        own += y * y;  // exact
      });
      squares += own;
      count += found;
    }
    inverse_ = steps_of(count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0);
    ready_ = true;
  }

  page_code_lines lines_;
  float *centre_, *rotated_;  // (D)
  float inverse_ = 0;
  bool ready_ = false;
};

}  // namespace kvx
