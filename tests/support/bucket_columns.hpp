#pragma once
// Columns of key codes for tests of an index: any bytes, or the codes of given keys.

#include <kvx/core/element.hpp>
#include <kvx/index/host/sign_sums.hpp>
#include <kvx/sketch/key_norm.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace kvx::test {

/// The scanned columns of one layer of `tokens` tokens, in pages that lie in random order in a larger pool.
class bucket_columns {
 public:
  bucket_columns(const key_sketch& sketch, page_shape page, int heads, std::int64_t tokens, std::uint32_t seed)
      : sketch_(sketch), page_(page), tokens_(tokens), random_(seed) {
    const std::int64_t count = (tokens + page.tokens - 1) / page.tokens;
    pages_.resize(static_cast<std::size_t>(count + 3));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), random_);
    for (int c = 0; c <= column_means; ++c) {
      column block;
      block.block_bytes = block_bytes(sketch, page, static_cast<sketch_column>(c));
      bytes_[c].resize(static_cast<std::size_t>(block.pitch() * heads * (count + 3)), std::byte{0xff});  // bf16 and bytes: NaN, and poison
      columns_[static_cast<std::size_t>(c)] = {bytes_[c].data(), block.pitch(), heads, (count + 3) * block.pitch()};
    }
  }

  std::mt19937& random() { return random_; }

  bucket_zone zone(std::int64_t head, std::int64_t begin, std::int64_t end) const {
    return {page_, columns_, head, pages_.data(), begin, end};
  }
  std::byte* block(sketch_column c, std::int64_t head, std::int64_t page) const {
    return columns_[c].at(pages_[static_cast<std::size_t>(page)], head);
  }

  /// Random signs, norm bytes around 160 and means of a few units. Bits beyond the last coordinate are 0.
  void fill_at_random(std::int64_t head) {
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i * page_.tokens < tokens_; ++i) {
      for (int p = 0; p < plane_bytes(page_.key_dim); ++p) {
        const int mask = page_.key_dim - 8 * p >= 8 ? 255 : (1 << (page_.key_dim - 8 * p)) - 1;
        for (int t = 0; t < page_.tokens; ++t) {
          block(column_signs, head, i)[p * page_.tokens + t] = static_cast<std::byte>(random_() & random_() & static_cast<unsigned>(mask));
        }
      }
      for (int t = 0; sketch_.norms && t < page_.tokens; ++t) {
        const float byte = std::clamp(160 + 12 * normal(random_), 1.0f, 255.0f);
        block(column_norms, head, i)[t] = random_() % 97 == 0 ? std::byte{0} : static_cast<std::byte>(byte);
      }
      for (int d = 0; sketch_.centre && d < page_.key_dim; ++d) {
        reinterpret_cast<bf16*>(block(column_means, head, i))[d] = round_to<bf16>(3 * normal(random_));
      }
    }
  }

  /// The codes of keys (tokens, D), balance 1.
  void encode(std::int64_t head, const std::vector<float>& keys) {
    const auto dim = static_cast<std::size_t>(page_.key_dim);
    for (std::int64_t i = 0; i * page_.tokens < tokens_; ++i) {
      const std::int64_t first = i * page_.tokens, n = std::min<std::int64_t>(page_.tokens, tokens_ - first);
      std::vector<float> mean(dim);
      for (std::size_t d = 0; sketch_.centre && d < dim; ++d) {
        for (std::int64_t t = 0; t < n; ++t) mean[d] += keys[static_cast<std::size_t>(first + t) * dim + d];
        const bf16 stored = round_to<bf16>(mean[d] / static_cast<float>(n));
        reinterpret_cast<bf16*>(block(column_means, head, i))[d] = stored;
        mean[d] = to_float(stored);
      }
      for (std::int64_t t = 0; t < n; ++t) {
        std::vector<float> k(dim);
        float square = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          k[d] = keys[static_cast<std::size_t>(first + t) * dim + d] - mean[d];
          square += k[d] * k[d];
        }
        rotate(k.data(), dim, sketch_.seed);
        for (std::size_t p = 0; 8 * p < dim; ++p) {
          unsigned byte = 0;
          for (std::size_t j = 0; j < 8 && 8 * p + j < dim; ++j) byte |= (k[8 * p + j] >= 0 ? 1u : 0u) << j;
          block(column_signs, head, i)[static_cast<std::int64_t>(p) * page_.tokens + t] = static_cast<std::byte>(byte);
        }
        if (sketch_.norms) block(column_norms, head, i)[t] = static_cast<std::byte>(norm_byte(square));
      }
    }
  }

 private:
  key_sketch sketch_;
  page_shape page_;
  std::int64_t tokens_;
  std::mt19937 random_;
  std::vector<std::int32_t> pages_;
  std::vector<std::byte> bytes_[column_means + 1];
  key_columns columns_;
};

/// Queries of a group, rotated and plain, and log-sum-exps.
struct group_queries {
  std::vector<float> rotated, plain, lse;
  int group = 0, dim = 0;

  bucket_queries view(float scale) const {
    return {tensor_view<const float, 2>(rotated.data(), group, dim), tensor_view<const float, 2>(plain.data(), group, dim), lse.data(),
            scale};
  }
};

/// Heads of different strength; lse of the size of their logits.
inline group_queries random_queries(int group, int dim, std::uint64_t seed, std::mt19937& random) {
  std::normal_distribution<float> normal;
  group_queries q;
  q.group = group;
  q.dim = dim;
  for (int g = 0; g < group; ++g) {
    const float strength = 1 + .5f * static_cast<float>(g % 3);
    std::vector<float> row;
    for (int d = 0; d < dim; ++d) row.push_back(strength * normal(random));
    q.plain.insert(q.plain.end(), row.begin(), row.end());
    rotate(row.data(), row.size(), seed);
    q.rotated.insert(q.rotated.end(), row.begin(), row.end());
    q.lse.push_back(5 * normal(random));
  }
  return q;
}

}  // namespace kvx::test
