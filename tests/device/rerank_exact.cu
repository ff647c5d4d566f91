// Reranking by true logits on the device: logits within the stated bound of those in double, and the best by them exactly.

#include <kvx/rerank/cuda/exact.cuh>
#include <kvx/rerank/cuda/pass_through.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "device/device_array.cuh"
#include "support/divided_budget.hpp"
#include "support/group_scores.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

/// Keys of two heads in pages of one sequence, NaN in padding; queries and candidates at random.
template <class E>
struct step {
  int dim = 64, page_tokens = 16, group = 4, shift = 0, gap = 0;
  std::int64_t tokens = 100;
  std::vector<std::int32_t> counts = {50, 90};  // of each head
  std::int64_t keep = 20;
  group_rule rule = {};
  bool norms = true;
  bool bad_key = false;  // one of NaN
  std::int64_t spare = 5;
  bool pooled = false;

  void check() {
    constexpr int heads = 2;
    std::mt19937 random(static_cast<unsigned>(dim + group));
    std::normal_distribution<float> normal;
    const int unit = 16 / static_cast<int>(sizeof(E)), stride = (dim + unit - 1) / unit * unit + gap;
    const std::int64_t pages = (tokens + page_tokens - 1) / page_tokens;
    std::vector<std::int32_t> table;
    for (std::int64_t p = 0; p < pages; ++p) table.push_back(static_cast<std::int32_t>(pages - 1 - p));
    row_array<E> where{nullptr, std::int64_t{heads} * page_tokens * stride, std::int64_t{page_tokens} * stride, stride};
    std::vector<E> keys(static_cast<std::size_t>(shift + pages * where.page_stride), round_to<E>(quiet_nan));
    where.data = keys.data() + shift;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        E* const row = where.at(table[static_cast<std::size_t>(t / page_tokens)], h, t % page_tokens);
        for (int d = 0; d < dim; ++d) row[d] = round_to<E>(normal(random));
        if (bad_key && t % 7 == 3) row[static_cast<std::size_t>(dim - 1)] = round_to<E>(t % 2 == 0 ? quiet_nan : infinity);
      }
    }
    std::vector<float> plain, lse;
    for (int i = 0; i < heads * group * dim; ++i) plain.push_back(normal(random));
    for (int i = 0; i < heads * group; ++i) lse.push_back(normal(random));
    const std::int64_t most = std::max(counts[0], counts[1]);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(heads * most), -1), all(static_cast<std::size_t>(tokens));
    for (std::size_t t = 0; t < all.size(); ++t) all[t] = static_cast<std::int32_t>(t);
    for (int h = 0; h < heads; ++h)
      std::sample(all.begin(), all.end(), ids.begin() + h * most, counts[static_cast<std::size_t>(h)], random);

    const device_array<E> d_keys(keys);
    const device_array<std::int32_t> d_table(table), d_ids(ids), d_counts(counts), d_entry(std::vector<std::int32_t>{0});
    const device_array<batch_item> d_item(std::vector<batch_item>{{d_table.data(), tokens, 1, 0}});
    const device_array<float> d_plain(plain), d_lse(lse);
    device_batch batch;
    batch.items = d_item.data();
    batch.entry_of = d_entry.data();
    batch.tokens = batch.entries = 1;
    rerank_shape shape;
    shape.heads = heads;
    shape.group = group;
    shape.candidates = most + spare;
    shape.keep = keep;
    shape.pooled = pooled;
    const device_array<std::byte> memory(std::vector<std::byte>(static_cast<std::size_t>(rerank_scratch({}, shape)), std::byte{0x7e}));
    scratch_parts parts{memory.data()};
    const rerank_output out = plan_rerank(shape, parts);
    rerank_input in;
    in.ids = d_ids.data();
    in.counts = d_counts.data();
    in.id_pitch = most;
    in.plain = d_plain.data();
    in.lse = d_lse.data();
    row_view<const E> rows;
    rows.key = {d_keys.data() + shift, where.page_stride, where.head_stride, where.slot_stride};
    rows.heads = heads;
    rows.page_tokens = page_tokens;
    rows.key_dim = rows.value_dim = dim;
    const test_stream stream;
    const device exec{.stream = stream.get()};
    clear_rerank(exec, out);
    for (int run = 0; run < 2; ++run) rerank(exec, exact{rule}, key_sketch{.norms = norms}, rows, batch, in, out);
    stream.wait();

    const auto left = memory.read();
    const auto at = [&]<class T>(const T* p) {
      return reinterpret_cast<const T*>(left.data() + (reinterpret_cast<const std::byte*>(p) - memory.data()));
    };
    for (std::int64_t i = 0; i < shape.counters_needed(); ++i) CHECK(at(out.counters)[i] == 0);
    std::vector<std::vector<float>> scores(heads);
    for (std::int64_t h = 0; h < heads; ++h) {
      CAPTURE(h);
      const std::int64_t n = counts[static_cast<std::size_t>(h)];
      const std::int32_t* const mine = ids.data() + h * most;
      scores[static_cast<std::size_t>(h)].assign(static_cast<std::size_t>(n), 0);  // where all are kept without a look, all are as good
      if (n > 0 && (!norms || pooled || n > keep)) {
        std::vector<float> logits;
        double worst = 0;
        bool same_nans = true;
        for (int g = 0; g < group; ++g) {
          for (std::int64_t t = 0; t < n; ++t) {
            const E* const row = where.at(table[static_cast<std::size_t>(mine[t] / page_tokens)], h, mine[t] % page_tokens);
            double sum = 0, largest = 0;
            for (int d = 0; d < dim; ++d) {
              const double term = static_cast<double>(plain[static_cast<std::size_t>((h * group + g) * dim + d)]) * to_float(row[d]);
              sum += term;
              largest = std::max(largest, std::abs(term));
            }
            const double scale = 1 / std::sqrt(static_cast<double>(dim));
            logits.push_back(at(out.logits_of(h))[g * out.pitch + t]);
            same_nans = same_nans && is_nan(logits.back()) == !std::isfinite(sum);
            if (std::isfinite(sum))
              worst = std::max(worst, std::abs(static_cast<double>(logits.back()) - scale * sum) / (0x1p-22 * dim * largest * scale));
          }
        }
        CHECK(same_nans);
        CHECK(worst <= 1);
        const std::vector<float> resident(lse.begin() + h * group, lse.begin() + (h + 1) * group);
        scores[static_cast<std::size_t>(h)] = group_scores_slowly(rule.by, logits, group, n, resident);
      }
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      CAPTURE(h);
      const auto own = static_cast<std::size_t>(h);
      const std::vector<std::size_t> expected = pooled ? divided_budget(scores, heads * keep)[own] : divided_budget({scores[own]}, keep)[0];
      REQUIRE(at(out.chosen_counts)[h] == std::ssize(expected));
      bool same = true;
      for (std::size_t i = 0; i < expected.size(); ++i)
        same = same && at(out.chosen_of(h))[i] == ids[static_cast<std::size_t>(h * most) + expected[i]];
      CHECK(same);
    }
  }
};

}  // namespace

TEST_CASE_TEMPLATE("every element and dims of every residue", E, float, kvx::half, bf16) {
  for (const int d : {1, 2, 7, 8, 9, 46, 63, 64, 65, 80, 128, 192, 576}) {
    CAPTURE(d);
    step<E>{.dim = d}.check();
    step<E>{.dim = d, .group = 1, .shift = 1, .gap = 1, .counts = {30, 31}}.check();
  }
}

TEST_CASE("groups, rules, page sizes, keys that are not finite, candidates around a block's") {
  int turn = 0;
  for (const int group : {1, 2, 3, 4, 5, 8, 9, 16, 64, 128}) {
    CAPTURE(group);
    step<bf16>{.dim = 24, .group = group, .counts = {40, 0}, .rule = {static_cast<group_rule::kind>(turn++ % 3)}, .bad_key = true}.check();
  }
  for (int page = 1; page <= 128; page *= 2) step<kvx::half>{.dim = 16, .page_tokens = page, .group = 2, .norms = page % 3 == 0}.check();
  step<bf16>{.dim = 8, .group = 2, .tokens = 600, .counts = {255, 256}}.check();
  step<bf16>{.dim = 8, .group = 2, .tokens = 600, .counts = {257, 600}, .bad_key = true, .spare = most_shared_scores}.check();
  step<bf16>{.dim = 8, .group = 2, .counts = {20, 21}}.check();
  step<bf16>{.dim = 8, .group = 2, .counts = {20, 19}, .norms = false}.check();
}

TEST_CASE("a budget of the layer: the best of both heads together") {
  int turn = 0;
  for (const int group : {1, 4, 9}) {
    for (const std::int64_t keep : {0, 1, 30, 200}) {
      step<bf16> s{.dim = 24, .group = group, .keep = keep, .rule = {static_cast<group_rule::kind>(turn % 3)}, .pooled = true};
      s.counts = turn % 4 == 3 ? std::vector<std::int32_t>{0, 90} : std::vector<std::int32_t>{90, 40};
      s.norms = turn % 2 == 0;
      s.bad_key = turn++ % 2 != 0;
      s.check();
    }
  }
}

TEST_CASE("passing through: the first ones stay") {
  const std::vector<std::int32_t> ids = {3, 5, 9, 11, 20, 1, 2, 30, -1, -1, -1, -1, -1, -1, -1}, counts = {5, 3, 0};
  const device_array<std::int32_t> d_ids(ids), d_counts(counts), d_entry(std::vector<std::int32_t>{0, 1, 1});
  const device_array<batch_item> d_items(std::vector<batch_item>{{nullptr, 50, 1, 0}, {nullptr, 20, 2, 1}});
  for (const std::int64_t keep : {0, 2, 4, 9}) {
    rerank_shape shape;
    shape.tokens = 3;
    shape.group = 2;
    shape.candidates = 5;
    shape.keep = keep;
    shape.whole_below = 19;
    const device_array<std::byte> memory(static_cast<std::size_t>(rerank_scratch({}, shape)));
    scratch_parts parts{memory.data()};
    const rerank_output out = plan_rerank(shape, parts);
    device_batch batch;
    batch.items = d_items.data();
    batch.entry_of = d_entry.data();
    rerank_input in;
    in.ids = d_ids.data();
    in.counts = d_counts.data();
    in.id_pitch = 5;
    const test_stream stream;
    rerank(device{.stream = stream.get()}, pass_through{}, batch, in, out);
    stream.wait();
    const auto left = memory.read();
    for (std::int64_t u = 0; u < 3; ++u) {
      const auto at = [&](const std::int32_t* p) {
        return reinterpret_cast<const std::int32_t*>(left.data() + (reinterpret_cast<const std::byte*>(p) - memory.data()));
      };
      const std::int64_t n = u == 0 ? std::min<std::int64_t>(keep, 5) : counts[static_cast<std::size_t>(u)];  // the second is short
      CHECK(at(out.chosen_counts)[u] == n);
      CHECK(std::equal(ids.begin() + u * 5, ids.begin() + u * 5 + n, at(out.chosen_of(u))));
    }
  }
}
