#pragma once
// The rows that speed is measured on: keys that drift like a model's, in pages as a cache keeps them.

#include <kvx/attend/dense.hpp>
#include <kvx/backend/memory.hpp>
#include <kvx/core/element.hpp>
#include <kvx/layout/row_view.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::bench {

/// Normal numbers, cheap: the sum of four uniform ones.
struct fast_normal {
  std::uint64_t state;
  float operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t x = state ^ state >> 29;
    float sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(x >> (16 * i) & 0xffffu) * 0x1p-16f;
    return sum * 1.7320508f;
  }
};

/// The keys and values of one KV head, token by token: keys are a random walk of the mean plus noise of spectrum i^-1, norm about 20;
/// values are normal.
class row_stream {
 public:
  row_stream(int head, int dim) : normal_{static_cast<std::uint64_t>(head) + 1}, mean_(static_cast<std::size_t>(dim)) {
    float norm = 0;
    for (int d = 0; d < dim; ++d) norm += 1 / static_cast<float>(d + 1);
    for (int d = 0; d < dim; ++d) deviation_.push_back(20 / std::sqrt(norm * static_cast<float>(d + 1)));
  }

  template <class E>
  void next(E* k, E* v) {
    for (std::size_t d = 0; d < mean_.size(); ++d) {
      if (token_ % 64 == 0) mean_[d] = .98f * mean_[d] + .1f * deviation_[d] * normal_();
      k[d] = round_to<E>(mean_[d] + deviation_[d] * normal_());
      v[d] = round_to<E>(normal_());
    }
    ++token_;
  }

 private:
  fast_normal normal_;
  std::vector<float> deviation_, mean_;
  std::int64_t token_ = 0;
};

/// Queries near random keys among the first `tokens` of a sequence: (count, heads * group, dim) floats.
template <class E>
std::vector<float> queries_near(const row_view<E>& rows, const std::int32_t* pages, std::int64_t tokens, std::int64_t count, int group) {
  std::vector<float> q;
  fast_normal normal{99};
  for (std::int64_t i = 0; i < count; ++i) {
    for (int h = 0; h < rows.heads * group; ++h) {
      const std::int64_t t = (i * 7919 + h * 104729) % tokens;
      const E* const k = rows.key.at(pages[t / rows.page_tokens], h / group, t % rows.page_tokens);
      for (int d = 0; d < rows.key_dim; ++d) q.push_back(.5f * to_float(k[d]) + .3f * normal());
    }
  }
  return q;
}

/// One layer of one sequence: the rows of a row_stream a head.
///
/// shapes      pages of 64 tokens in order, in a page [heads][slots][K then V]; from lazy_pages(), so in 2 MiB pages where granted
template <class E>
class world {
 public:
  static constexpr int page_tokens = 64;

  world(int heads, int dim, std::int64_t tokens)
      : tokens_(tokens), memory_(lazy_pages(), tokens * heads * 2 * dim * static_cast<std::int64_t>(sizeof(E))) {
    E* const data = reinterpret_cast<E*>(memory_.data());
    const std::int64_t slot = 2 * dim, head = page_tokens * slot, page = heads * head;
    rows_ = {{data, page, head, slot}, {data + dim, page, head, slot}, heads, page_tokens, dim, dim};
    for (std::int64_t p = 0; p * page_tokens < tokens; ++p) pages_.push_back(static_cast<std::int32_t>(p));
    for (int h = 0; h < heads; ++h) {
      row_stream stream(h, dim);
      for (std::int64_t t = 0; t < tokens; ++t)
        stream.next(rows_.key.at(t / page_tokens, h, t % page_tokens), rows_.value.at(t / page_tokens, h, t % page_tokens));
    }
  }

  row_view<const E> rows() const { return rows_; }
  const std::byte* data() const { return memory_.data(); }
  std::int64_t bytes() const { return memory_.size(); }
  attend_item item(std::int64_t length, std::int64_t queries) const { return {pages_.data(), length, queries, 0}; }

  /// Queries near random keys: (count, heads * group, dim) floats.
  std::vector<float> queries(std::int64_t count, int group) const { return queries_near(rows_, pages_.data(), tokens_, count, group); }

 private:
  std::int64_t tokens_;
  memory_block memory_;
  row_view<E> rows_;
  std::vector<std::int32_t> pages_;
};

}  // namespace kvx::bench
