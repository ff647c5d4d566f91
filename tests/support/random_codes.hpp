#pragma once
// Columns of a key sketch filled with random bytes, in pages in random order: any code at all.

#include <kvx/core/element.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace kvx::test {

/// Codes of one sequence, without rows.
class random_codes {
 public:
  random_codes(const key_sketch& s, int dim, int page_tokens, int heads, std::int64_t tokens, unsigned seed) {
    const page_shape shape{page_tokens, dim, dim};
    const std::int64_t pages = (tokens + page_tokens - 1) / page_tokens;
    std::mt19937 random(seed);
    pages_.resize(static_cast<std::size_t>(pages));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), random);
    const auto columns = sketch_columns(s, shape);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      // Blocks end where their memory ends, if their size allows: a sanitizer sees what is read behind them.
      const std::int64_t bytes = columns[c].block_bytes;
      if (bytes == 0) continue;
      const std::int64_t pitch = columns[c].pitch();
      memory_[c].resize(static_cast<std::size_t>((pages * heads - 1) * pitch + bytes));
      for (std::byte& b : memory_[c]) b = static_cast<std::byte>(random());
      if (c == column_weights || c == column_means) {
        std::normal_distribution<float> normal;
        for (std::size_t i = 0; i + 1 < memory_[c].size(); i += 2) {
          const float x = c == column_weights ? 20 * std::abs(normal(random)) : normal(random);
          const std::uint16_t bits = c == column_weights ? round_to<half>(x).bits : round_to<bf16>(x).bits;
          std::memcpy(memory_[c].data() + i, &bits, 2);
        }
      }
      view_.columns[c] = {memory_[c].data(), pitch, heads, pages * pitch};
    }
    view_.rows.heads = heads;
    view_.rows.page_tokens = page_tokens;
    view_.rows.key_dim = view_.rows.value_dim = dim;
    view_.pages = pages_.data();
  }

  head_view<float> head(std::int64_t h) const {
    head_view<float> view = view_;
    view.head = h;
    return view;
  }

 private:
  std::vector<std::byte> memory_[sketch_column_count];
  std::vector<std::int32_t> pages_;
  head_view<float> view_;
};

}  // namespace kvx::test
