#pragma once
// Sequences of random rows in shuffled pages, for tests of anything that reads a row_view: everything outside of a row is poison.

#include <kvx/attend/dense.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace kvx::test {

/// Shape of a test's rows.
///
/// offset, gap     elements before the first row, and between a row's end and the next: any alignment, odd pitches
/// poison          value of every element that belongs to no row of a sequence
struct paged_shape {
  int heads = 1;
  int page_tokens = 16;
  int key_dim = 64;
  int value_dim = 64;
  std::vector<std::int64_t> lengths = {};
  int offset = 0;
  int gap = 0;
  float poison = std::numeric_limits<float>::quiet_NaN();
  unsigned seed = 1;
};

/// Rows of several sequences. In memory: pages in random order, in a page [heads][slots][K then V].
template <class E>
class paged_rows {
 public:
  explicit paged_rows(const paged_shape& s) : shape_(s) {
    std::int64_t pages = 0;
    for (const std::int64_t n : s.lengths) pages += (n + s.page_tokens - 1) / s.page_tokens;
    std::mt19937 random(s.seed);
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const std::int64_t pitch = s.key_dim + s.value_dim + s.gap;
    const std::int64_t page = s.heads * s.page_tokens * pitch;
    data_.assign(static_cast<std::size_t>(s.offset + pages * page), round_to<E>(s.poison));
    view_.key = {data_.data() + s.offset, page, s.page_tokens * pitch, pitch};
    view_.value = {data_.data() + s.offset + s.key_dim, page, s.page_tokens * pitch, pitch};
    view_.heads = s.heads;
    view_.page_tokens = s.page_tokens;
    view_.key_dim = s.key_dim;
    view_.value_dim = s.value_dim;
    std::normal_distribution<float> normal;
    std::size_t next = 0;
    for (const std::int64_t n : s.lengths) {
      const auto count = static_cast<std::size_t>((n + s.page_tokens - 1) / s.page_tokens);
      tables_.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(next), order.begin() + static_cast<std::ptrdiff_t>(next + count));
      next += count;
      for (std::int64_t t = 0; t < n; ++t) {
        for (int h = 0; h < s.heads; ++h) {
          for (int d = 0; d < s.key_dim; ++d) key(tables_.size() - 1, t, h)[d] = round_to<E>(normal(random));
          for (int d = 0; d < s.value_dim; ++d) value(tables_.size() - 1, t, h)[d] = round_to<E>(normal(random));
        }
      }
    }
  }

  row_view<const E> view() const { return view_; }
  /// All memory, poison included, and where in it the rows begin.
  const std::vector<E>& memory() const { return data_; }
  int offset() const { return shape_.offset; }
  const std::vector<std::vector<std::int32_t>>& tables() const { return tables_; }
  attend_item item(std::size_t sequence, std::int64_t queries, std::int64_t first) const {
    return {tables_[sequence].data(), shape_.lengths[sequence], queries, first};
  }
  E* key(std::size_t sequence, std::int64_t t, int head) {
    return view_.key.at(tables_[sequence][static_cast<std::size_t>(t / shape_.page_tokens)], head, t % shape_.page_tokens);
  }
  E* value(std::size_t sequence, std::int64_t t, int head) {
    return view_.value.at(tables_[sequence][static_cast<std::size_t>(t / shape_.page_tokens)], head, t % shape_.page_tokens);
  }

 private:
  paged_shape shape_;
  std::vector<E> data_;
  std::vector<std::vector<std::int32_t>> tables_;
  row_view<E> view_;
};

}  // namespace kvx::test
