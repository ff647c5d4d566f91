// Keys are encoded on the device, and queries rotated, to the bits of the definition.

#include <kvx/backend/device.cuh>
#include <kvx/sketch/cuda/key_code.cuh>
#include <kvx/transform/cuda/srht.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/device_array.cuh"
#include "support/key_code.hpp"

namespace {

using kvx::key_sketch;
using kvx::test::device_array;
using weighting = key_sketch::weighting;

template <class E>
std::vector<E> random_keys(int tokens, int dim, unsigned seed, float common = 2, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> mean(static_cast<std::size_t>(dim));
  for (float& m : mean) m = common * normal(random);
  std::vector<E> keys;
  for (int i = 0; i < tokens * dim; ++i) {
    keys.push_back(kvx::round_to<E>(mean[static_cast<std::size_t>(i % dim)] + spread * normal(random)));
  }
  return keys;
}

/// Pages of keys of `heads` KV heads as a cache holds them, and the columns of one layer; page i is coded under another id.
template <class E>
class pages_on_device {
 public:
  /// keys (pages, heads) of (tokens, dim); rows begin `shift` elements behind a multiple of 16 bytes, and lie `gap` elements apart
  pages_on_device(const key_sketch& s, const std::vector<std::vector<E>>& keys, int heads, int tokens, int dim, int shift, int gap)
      : sketch_(s), heads_(heads), tokens_(tokens), dim_(dim) {
    const int unit = 16 / static_cast<int>(sizeof(E)), stride = (dim + unit - 1) / unit * unit + gap;
    const auto pages = static_cast<std::int64_t>(keys.size()) / heads;
    const std::size_t each = static_cast<std::size_t>(tokens * stride);
    std::vector<E> rows(static_cast<std::size_t>(shift) + keys.size() * each, kvx::round_to<E>(std::numeric_limits<float>::quiet_NaN()));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (int t = 0; t < tokens; ++t) {
        std::copy_n(keys[i].begin() + t * dim, dim, rows.begin() + shift + static_cast<std::ptrdiff_t>(i * each) + t * stride);
      }
    }
    rows_ = device_array<E>(rows);
    view_.key = {rows_.data() + shift, heads * static_cast<std::int64_t>(each), static_cast<std::int64_t>(each), stride};
    view_.heads = heads;
    view_.page_tokens = tokens;
    view_.key_dim = view_.value_dim = dim;
    for (int c = 0; c < kvx::sketch_column_count; ++c) {
      kvx::column block;
      block.block_bytes = kvx::block_bytes(s, {tokens, dim, dim}, static_cast<kvx::sketch_column>(c));
      if (block.block_bytes == 0) continue;
      bytes_[c] = device_array<std::byte>(static_cast<std::size_t>(block.pitch() * heads * pages));
      columns_[static_cast<std::size_t>(c)] = {bytes_[c].data(), block.pitch(), heads, pages * block.pitch()};
    }
  }

  /// Encodes all pages: rows of page i, columns of page pages - 1 - i.
  void encode(const float* balances) {
    const auto pages = static_cast<std::int32_t>(rows_per_head());
    std::vector<kvx::page_to_encode> list;
    for (std::int32_t i = 0; i < pages; ++i) list.push_back({i, pages - 1 - i, balances});
    const device_array<kvx::page_to_encode> on_device(list);
    const kvx::test::test_stream stream;
    kvx::encode_pages(kvx::device{.stream = stream.get()}, sketch_, view_, columns_, on_device.data(), pages);
    stream.wait();
    for (int c = 0; c < kvx::sketch_column_count; ++c) result_[c] = bytes_[c].read();
  }

  kvx::test::coded_page page(std::int64_t i, int head) const {
    kvx::test::coded_page page(sketch_, dim_, tokens_);
    const auto take = [&](kvx::sketch_column c, auto& to) {
      const std::int64_t at = columns_[c].head_stride * head + columns_[c].pitch * (rows_per_head() - 1 - i);
      if (!to.empty()) std::memcpy(to.data(), result_[c].data() + at, to.size() * sizeof(to[0]));
    };
    take(kvx::column_signs, page.signs);
    take(kvx::column_norms, page.norms);
    take(kvx::column_means, page.means);
    take(kvx::column_magnitudes, page.magnitudes);
    take(kvx::column_weights, page.weights);
    return page;
  }

  /// Bytes between the blocks are as they were.
  bool padding_is_untouched() const {
    for (int c = 0; c < kvx::sketch_column_count; ++c) {
      const std::int64_t block = kvx::block_bytes(sketch_, {tokens_, dim_, dim_}, static_cast<kvx::sketch_column>(c));
      for (std::size_t i = 0; i < result_[c].size(); ++i) {
        if (static_cast<std::int64_t>(i) % columns_[static_cast<std::size_t>(c)].pitch >= block && result_[c][i] != std::byte{0xff})
          return false;
      }
    }
    return true;
  }

 private:
  std::int64_t rows_per_head() const { return columns_[kvx::column_signs].head_stride / columns_[kvx::column_signs].pitch; }

  key_sketch sketch_;
  int heads_, tokens_, dim_;
  device_array<E> rows_;
  kvx::row_view<const E> view_;
  kvx::key_columns columns_;
  device_array<std::byte> bytes_[kvx::sketch_column_count];
  std::vector<std::byte> result_[kvx::sketch_column_count];
};

template <class E>
void check_bits(const key_sketch& s, const std::vector<std::vector<E>>& keys, int heads, int tokens, int dim,
                const std::vector<float>& balances, int shift = 0, int gap = 0) {
  pages_on_device<E> pages(s, keys, heads, tokens, dim, shift, gap);
  const device_array<float> diagonals(balances);
  pages.encode(balances.empty() ? nullptr : diagonals.data());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto head = static_cast<int>(i) % heads;
    const auto expected = kvx::test::encode_page_slowly(s, keys[i], dim, balances.empty() ? nullptr : balances.data() + head * dim);
    const auto page = pages.page(static_cast<std::int64_t>(i) / heads, head);
    CHECK(page.signs == expected.signs);
    CHECK(page.norms == expected.norms);
    CHECK(page.means == expected.means);
    CHECK(page.magnitudes == expected.magnitudes);
    CHECK(page.weights == expected.weights);
  }
  CHECK(pages.padding_is_untouched());
}

std::vector<float> random_balances(int heads, int dim) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(.1f, 4);
  std::vector<float> balance(static_cast<std::size_t>(heads * dim));
  for (float& a : balance) a = uniform(random);
  return balance;
}

}  // namespace

TEST_CASE("every dim, subspace and width of code: the bits of the definition") {
  constexpr int ms[] = {4, 8, 16}, widths[] = {1, 2, 4, 8};
  int turn = 0;
  for (int dim = 1; dim <= 576; dim += dim < 72 ? 1 : 63, ++turn) {
    CAPTURE(dim);
    const std::vector<std::vector<kvx::bf16>> keys = {random_keys<kvx::bf16>(4, dim, static_cast<unsigned>(dim))};
    for (int i = 0; i < 3; ++i) {
      const int m = ms[(i + turn) % 3], bits = widths[(turn / 3 + i) % 4];
      const auto weights = (turn / 12 + i) % 3 == 0 ? weighting::key : weighting::subspace;
      CAPTURE(m);
      CAPTURE(bits);
      check_bits<kvx::bf16>({.subspace = m, .bits = bits, .weights = weights}, keys, 1, 4, dim, random_balances(1, dim));
    }
  }
}

TEST_CASE("every subspace, width and weighting at dims of models") {
  for (const int dim : {80, 128}) {
    CAPTURE(dim);
    const std::vector<std::vector<kvx::half>> keys = {random_keys<kvx::half>(4, dim, 11)};
    for (const int m : {4, 8, 16}) {
      for (const int bits : {1, 2, 4, 8}) {
        for (const auto weights : {weighting::subspace, weighting::key})
          check_bits<kvx::half>({.subspace = m, .bits = bits, .weights = weights}, keys, 1, 4, dim, random_balances(1, dim));
      }
    }
  }
}

TEST_CASE_TEMPLATE("every element and page size, heads and pages, rows that lie anyhow, with and without centre, balance and norms", E,
                   float, kvx::half, kvx::bf16) {
  int turn = 0;
  for (const int tokens : {1, 2, 16, 64, 128}) {
    CAPTURE(tokens);
    for (const int dim : {46, 64, 96, 192}) {
      if (tokens > 16 && dim != 46) continue;
      CAPTURE(dim);
      std::vector<std::vector<E>> keys;
      for (unsigned i = 0; i < (tokens > 16 ? 2u : 6u); ++i) keys.push_back(random_keys<E>(tokens, dim, i + 1));
      const bool full = turn++ % 2 == 0;
      check_bits<E>({.centre = full, .norms = full}, keys, 2, tokens, dim, full ? random_balances(2, dim) : std::vector<float>{},
                    turn % 3 == 0 ? 1 : 0, turn % 4 == 0 ? 3 : 0);
    }
  }
}

TEST_CASE("pages too large for shared memory are read where they lie") {
  const std::vector<std::vector<float>> keys = {random_keys<float>(256, 160, 3)};
  check_bits<float>({}, keys, 1, 256, 160, {});
}

TEST_CASE("what a block takes of shared memory, every architecture has") {
  for (const int dim : {8, 128, 256, 576}) {
    for (const int page_tokens : {16, 64, 128, 512, 1024}) {
      CAPTURE(dim);
      CAPTURE(page_tokens);
      const kvx::page_vectors<float, 3> keys({}, {nullptr, 0, 0, dim}, page_tokens, dim);
      CHECK(keys.shared_bytes() + 12 * 1024 <= 99 * 1024);  // 12 KiB: what values take beside
    }
  }
}

TEST_CASE("keys that are not finite are never found and change nobody else's code") {
  constexpr int dim = 80, tokens = 40;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, 3e38f}) {
    CAPTURE(bad);
    for (const auto weights : {weighting::subspace, weighting::key}) {
      auto keys = random_keys<float>(tokens, dim, 7);
      keys[3 * dim + 79] = bad;
      keys[11 * dim] = bad;
      keys[11 * dim + 1] = -bad;
      keys[39 * dim + 40] = bad;
      check_bits<float>({.weights = weights}, {keys}, 1, tokens, dim, {});
      check_bits<float>({.weights = weights, .centre = false}, {keys}, 1, tokens, dim, {});
    }
  }
  check_bits<float>({}, {std::vector<float>(4 * 24, nan)}, 1, 4, 24, {});
}

TEST_CASE("keys of zeros, pages of equal keys, keys of one constant channel, tiny and huge keys") {
  constexpr int dim = 64, tokens = 4;
  for (const bool centre : {false, true}) {
    const key_sketch s{.centre = centre};
    std::vector<float> keys(tokens * dim);
    check_bits<float>(s, {keys}, 1, tokens, dim, {});
    for (int i = 0; i < tokens * dim; ++i) keys[static_cast<std::size_t>(i)] = i % dim == 5 ? 700.0f : 1;
    check_bits<float>(s, {keys}, 1, tokens, dim, {});
    for (const float size : {1e-38f, 1e-20f, 1e-6f, 1e4f, 1e15f, 1e19f, 1e30f}) {
      CAPTURE(size);
      check_bits<float>(s, {random_keys<float>(tokens, dim, 9, 0, size)}, 1, tokens, dim, {});
    }
  }
}

TEST_CASE("what encoding on the device refuses; nothing to encode launches nothing") {
  const kvx::row_view<const float> rows{{}, {}, 1, 64, 64, 64};
  CHECK_THROWS_AS(kvx::encode_pages({}, {.subspace = 5}, rows, {}, nullptr, 1), kvx::usage_error);
  CHECK_THROWS_AS(kvx::encode_pages<8>({}, {.bits = 4}, rows, {}, nullptr, 1), kvx::usage_error);
  CHECK_THROWS_AS(kvx::encode_pages({}, {}, kvx::row_view<const float>{{}, {}, 1, 64, 577, 64}, {}, nullptr, 1), kvx::usage_error);
  CHECK_NOTHROW(kvx::encode_pages({}, {}, rows, {}, nullptr, 0));
}

namespace {

template <int Threads>
__global__ void rotate_kernel(kvx::tensor_view<const kvx::half, 3> q, std::int64_t row, std::int64_t head, int group, int dim,
                              const float* balance, std::uint64_t seed, float* plain, float* rotated) {
  __shared__ kvx::sign_words signs;
  kvx::fill_sign_words(seed, dim, signs);
  __syncthreads();
  kvx::rotate_queries<Threads>(q, row, head, group, dim, balance, signs, plain, rotated);
}

}  // namespace

TEST_CASE("rotated queries: the bits of rotate, for every dim") {
  constexpr std::uint64_t seed = 99;
  for (int dim = 1; dim <= 576; dim += dim < 140 ? 1 : 31) {
    CAPTURE(dim);
    const int group = dim % 5 + 1, heads = 2 * group;
    const auto q = random_keys<kvx::half>(2 * heads, dim, static_cast<unsigned>(dim));
    const auto balance = random_balances(1, dim);
    const device_array<kvx::half> queries(q);
    const device_array<float> diagonal(balance);
    const auto count = static_cast<std::size_t>(group * dim);
    const device_array<float> plain(count), rotated(count);
    const kvx::test::test_stream stream;
    kvx::launch(kvx::device{.stream = stream.get()}, {.grid = dim3(1), .threads = 64}, rotate_kernel<64>,
                kvx::tensor_view<const kvx::half, 3>(queries.data(), 2, heads, dim), 1, group, group, dim,
                dim % 3 == 0 ? nullptr : diagonal.data(), seed, plain.data(), rotated.data());
    stream.wait();
    const auto x = plain.read(), y = rotated.read();
    for (int g = 0; g < group; ++g) {
      std::vector<float> expected;
      for (int d = 0; d < dim; ++d) {
        const float v = kvx::to_float(q[static_cast<std::size_t>((heads + group + g) * dim + d)]);
        CHECK(x[static_cast<std::size_t>(g * dim + d)] == v);
        expected.push_back(dim % 3 == 0 ? v : v / balance[static_cast<std::size_t>(d)]);
      }
      kvx::rotate(expected.data(), expected.size(), seed);
      CHECK(std::memcmp(expected.data(), y.data() + g * dim, expected.size() * sizeof(float)) == 0);
    }
  }
}
