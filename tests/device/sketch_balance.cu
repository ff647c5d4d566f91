// Energies and balances on the device equal those of the host to the last bit.

#include <kvx/core/math.hpp>
#include <kvx/sketch/balance.hpp>
#include <kvx/sketch/cuda/balance.cuh>
#include <kvx/sketch/cuda/energies.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/device_array.cuh"

namespace {

using kvx::test::device_array;

/// Keys of one layer and energies of two layers, as several sequences hold them.
template <class E>
struct learning {
  int dim = 64, heads = 2, page_tokens = 16, sequences = 2;
  std::int64_t begin = 4, end = 90, samples = 11;
  kvx::rope_pairs pairs = {};
  float spread = 1;          // of keys; 0: all equal
  bool unseen = false;       // of the second sequence no query was
  bool bad = false;          // keys and energies with NaN and infinity
  static constexpr int layers = 2, layer = 1;

  void check() {
    std::mt19937 random(static_cast<unsigned>(dim));
    std::normal_distribution<float> normal;
    const std::int64_t pages = (end + page_tokens - 1) / page_tokens, stride = dim + 3;
    const std::int64_t per_page = std::int64_t{heads} * page_tokens * stride;
    std::vector<E> keys(static_cast<std::size_t>(sequences * pages * per_page), kvx::round_to<E>(kvx::quiet_nan));
    kvx::row_array<E> where{keys.data(), per_page, page_tokens * stride, stride};
    std::vector<std::vector<std::int32_t>> tables(static_cast<std::size_t>(sequences));
    for (std::int64_t s = 0; s < sequences; ++s) {
      for (std::int64_t p = 0; p < pages; ++p)
        tables[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>((pages - 1 - p) * sequences + s));
      for (std::int64_t t = 0; t < end; ++t) {
        for (int h = 0; h < heads; ++h) {
          E* const row = where.at(tables[static_cast<std::size_t>(s)][static_cast<std::size_t>(t / page_tokens)], h, t % page_tokens);
          for (int d = 0; d < dim; ++d) row[d] = kvx::round_to<E>(2 + spread * static_cast<float>(d % 5) * normal(random));
          if (bad && t % 9 == 5) row[dim / 2] = kvx::round_to<E>(t % 2 == 0 ? kvx::quiet_nan : kvx::infinity);
        }
      }
    }
    const std::size_t values = static_cast<std::size_t>(layers * heads * dim);
    std::vector<std::vector<kvx::bf16>> energies;
    for (std::int64_t i = 0; i < sequences * samples; ++i) {
      std::vector<kvx::bf16>& e = energies.emplace_back();
      for (std::size_t j = 0; j < values; ++j) e.push_back(kvx::round_to<kvx::bf16>(normal(random) * normal(random) + 3));
      if (bad && i % 3 == 1) e[values - 1] = kvx::round_to<kvx::bf16>(kvx::quiet_nan);
      if (unseen && i >= samples) std::fill(e.begin() + heads * dim, e.end(), kvx::round_to<kvx::bf16>(kvx::quiet_nan));
    }

    const device_array<E> d_keys(keys);
    std::vector<device_array<kvx::bf16>> d_energies;
    std::vector<device_array<const kvx::bf16*>> lists;
    std::vector<device_array<std::int32_t>> d_tables;
    std::vector<device_array<float>> diagonals;
    std::vector<device_array<std::uint8_t>> seen;
    std::vector<kvx::balance_to_fix> to_fix;
    for (std::int64_t s = 0; s < sequences; ++s) {
      std::vector<const kvx::bf16*> list;
      for (std::int64_t i = 0; i < samples; ++i) {
        d_energies.emplace_back(energies[static_cast<std::size_t>(s * samples + i)]);
        list.push_back(bad && i == 2 ? nullptr : d_energies.back().data());
      }
      lists.emplace_back(list);
      d_tables.emplace_back(tables[static_cast<std::size_t>(s)]);
      diagonals.emplace_back(values);
      seen.emplace_back(static_cast<std::size_t>(layers * heads));
      to_fix.push_back({d_tables.back().data(), lists.back().data(), samples, diagonals.back().data(), seen.back().data()});
    }
    const device_array<kvx::balance_to_fix> list(to_fix);
    kvx::row_view<const E> rows;
    rows.key = {d_keys.data(), where.page_stride, where.head_stride, where.slot_stride};
    rows.heads = heads;
    rows.page_tokens = page_tokens;
    rows.key_dim = rows.value_dim = dim;
    const kvx::test::test_stream stream;
    kvx::fix_balances(kvx::device{.stream = stream.get()}, rows, list.data(), sequences, begin, end, pairs, layer);
    stream.wait();

    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto a = diagonals[static_cast<std::size_t>(s)].read();
      const auto told = seen[static_cast<std::size_t>(s)].read();
      for (int h = 0; h < heads; ++h) {
        kvx::balance_moments moments(dim);
        for (std::int64_t t = begin; t < end; ++t)
          moments.add_key(where.at(tables[static_cast<std::size_t>(s)][static_cast<std::size_t>(t / page_tokens)], h, t % page_tokens));
        const std::int64_t at = (layer * heads + h) * dim;
        for (std::int64_t i = 0; i < samples; ++i) {
          if (!(bad && i == 2)) moments.add_energies(energies[static_cast<std::size_t>(s * samples + i)].data() + at);
        }
        std::vector<float> expected(static_cast<std::size_t>(dim));
        moments.balance(pairs, expected.data());
        CHECK(std::memcmp(expected.data(), a.data() + at, expected.size() * sizeof(float)) == 0);
        CHECK(told[static_cast<std::size_t>(layer * heads + h)] == (moments.queries() > 0 ? 1 : 0));
        CHECK(kvx::is_nan(a[static_cast<std::size_t>(h * dim)]));  // the other layer is not touched
      }
    }
  }
};

}  // namespace

TEST_CASE_TEMPLATE("balances: every element, dim and page size", E, float, kvx::half, kvx::bf16) {
  for (const int dim : {1, 2, 17, 64, 96, 255, 256, 257, 576}) {
    CAPTURE(dim);
    learning<E>{.dim = dim, .page_tokens = 1 << dim % 8}.check();
  }
}

TEST_CASE("balances: RoPE pairs, rows that are not finite, nothing seen, nothing that varies, few keys") {
  using order = kvx::rope_pairs::order;
  for (const bool bad : {false, true}) {
    learning<float>{.pairs = {order::halves, 48}, .bad = bad}.check();
    learning<kvx::bf16>{.pairs = {order::interleaved, 64}, .unseen = true, .bad = bad}.check();
    learning<float>{.spread = 0, .bad = bad}.check();
    learning<float>{.begin = 4, .end = 5, .bad = bad}.check();
    learning<float>{.begin = 4, .end = 4, .samples = 0, .bad = bad}.check();
    learning<kvx::half>{.heads = 3, .sequences = 3, .begin = 0, .end = 33, .samples = 17, .bad = bad}.check();
  }
}

TEST_CASE_TEMPLATE("energies: the squares of a group's queries, of the positions that are learned from alone", E, float, kvx::half,
                   kvx::bf16) {
  constexpr int layers = 2, rows = 12;
  for (const int dim : {1, 46, 128, 200}) {
    for (const int group : {1, 3, 4}) {
      constexpr int heads = 3;
      CAPTURE(dim);
      CAPTURE(group);
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      std::vector<E> q;
      for (int i = 0; i < rows * heads * group * dim; ++i) q.push_back(kvx::round_to<E>(normal(random)));
      q[static_cast<std::size_t>(3 * heads * group * dim)] = kvx::round_to<E>(kvx::quiet_nan);
      const auto values = static_cast<std::size_t>(layers * heads * dim);
      const device_array<E> queries(q);
      const device_array<kvx::bf16> first(values), second(values);
      std::vector<kvx::bf16*> samples(rows, nullptr);
      samples[3] = first.data();
      samples[11] = second.data();
      const device_array<kvx::bf16*> list(samples);
      const kvx::test::test_stream stream;
      kvx::observe_tokens(kvx::device{.stream = stream.get()}, list.data(), heads * dim, heads,
                          kvx::tensor_view<const E, 3>(queries.data(), rows, heads * group, dim));
      stream.wait();
      for (const int row : {3, 11}) {
        const auto energies = (row == 3 ? first : second).read();
        bool same = true;
        for (int h = 0; h < heads; ++h) {
          for (int d = 0; d < dim; ++d) {
            double sum = 0;
            for (int g = 0; g < group; ++g) {
              const double x = kvx::to_float(q[static_cast<std::size_t>(((row * heads + h) * group + g) * dim + d)]);
              sum += x * x;
            }
            const kvx::bf16 expected = kvx::round_to<kvx::bf16>(static_cast<float>(sum));
            same = same && energies[static_cast<std::size_t>((heads + h) * dim + d)].bits == expected.bits;
            same = same && energies[static_cast<std::size_t>(h * dim + d)].bits == 0xffff;
          }
        }
        CHECK(same);
      }
    }
  }
}
