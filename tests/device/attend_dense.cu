// Dense attention on the device equals its definition: dims, groups, elements, pages, lengths, masks, ragged batches.

#include "device/dense_on_device.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;

/// One new token of each sequence, and a few of the first.
template <class E, class T>
void check_decode(const paged_shape& s, int group, const dense_options& o = {}, std::int64_t queries = 1) {
  const paged_rows<E> rows(s);
  std::vector<attend_item> batch;
  std::int64_t n = 0;
  for (std::size_t i = 0; i < s.lengths.size(); ++i) {
    batch.push_back(rows.item(i, i == 0 ? queries : 1, n));
    n += batch.back().queries;
  }
  check_device_dense(rows, batch, query_rows<T>(n, s.heads * group, s.key_dim, 7), o);
}

}  // namespace

TEST_CASE("decode: head dims, elements, alignments") {
  for (const int d : {1, 8, 17, 46, 64, 72, 80, 96, 112, 128, 192, 256, 576}) {
    CAPTURE(d);
    check_decode<bf16, float>({.key_dim = d, .value_dim = d, .lengths = {150}, .gap = d % 3}, 4);
    check_decode<kvx::half, kvx::half>({.key_dim = d, .value_dim = 577 - d, .lengths = {70}, .offset = 1, .gap = 1}, 3);
  }
  check_decode<float, float>({.key_dim = 80, .value_dim = 48, .lengths = {150}}, 4);
  check_decode<float, float>({.key_dim = 576, .value_dim = 576, .lengths = {40}}, 2);
  check_decode<bf16, bf16>({.key_dim = 576, .value_dim = 512, .lengths = {100}}, 16);
}

TEST_CASE("decode: groups, heads, page sizes, several queries") {
  for (int group = 1; group <= 16; ++group) {
    CAPTURE(group);
    check_decode<bf16, bf16>({.heads = 2, .page_tokens = 1 << group % 8, .key_dim = 32, .value_dim = 24, .lengths = {150, 31, 700}}, group,
                             {}, 16 / group);
  }
}

TEST_CASE("decode: every length around tiles and pieces, and two devices' worth of pieces") {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n <= 70; ++n) lengths.push_back(n);
  for (const std::int64_t n : {127, 128, 129, 255, 256, 257, 511, 513, 1000, 2047, 2049}) lengths.push_back(n);
  check_decode<kvx::half, float>({.page_tokens = 8, .key_dim = 8, .value_dim = 8, .lengths = lengths}, 2);
  check_decode<float, float>({.page_tokens = 16, .key_dim = 8, .value_dim = 8, .lengths = {0, 1, 31, 33, 128, 130, 1025}}, 2);
  // Of one head many pieces are split off, of many heads few: 16,500 keys are 128 pieces, and 65 of 256 keys.
  check_decode<bf16, float>({.key_dim = 8, .value_dim = 8, .lengths = {16500}}, 1);
  check_decode<bf16, float>({.heads = 8, .page_tokens = 64, .key_dim = 8, .value_dim = 8, .lengths = {16500}}, 1);
}

TEST_CASE("decode: windows and sinks, narrower and wider than tiles, pieces and the sequence") {
  for (const std::int64_t length : {50, 700}) {
    for (const std::int64_t window : {1, 2, 31, 32, 33, 130, 600, 5000}) {
      for (const std::int64_t sink : {0, 1, 4, 70, 900}) {
        CAPTURE(length);
        CAPTURE(window);
        CAPTURE(sink);
        check_decode<bf16, float>({.heads = 2, .page_tokens = 8, .key_dim = 16, .value_dim = 24, .lengths = {length, length}}, 2,
                                  {.window = window, .sink = sink}, 5);
      }
    }
  }
}

TEST_CASE("decode: soft cap and scale") {
  for (const float cap : {0.0f, .5f, 5.0f, 50.0f}) {
    for (const float scale : {0.0f, 1.0f, -.3f})
      check_decode<float, float>({.heads = 2, .key_dim = 20, .value_dim = 12, .lengths = {150, 90}}, 2, {.scale = scale, .soft_cap = cap});
  }
  check_decode<bf16, float>({.key_dim = 20, .value_dim = 12, .lengths = {150}}, 2, {.soft_cap = 3, .window = 10, .sink = 2}, 3);
}

TEST_CASE("pages that no query sees are not even looked up") {
  const paged_rows<bf16> rows({.page_tokens = 8, .key_dim = 16, .value_dim = 16, .lengths = {1200}});
  const query_rows<float> q(3, 1, 16, 3);
  const attend_item item = rows.item(0, 3, 0);
  const dense_options o{.window = 20, .sink = 10};
  const auto expected = attend_on_device(rows, {item}, q, o);
  std::vector<std::vector<std::int32_t>> tables = rows.tables();
  for (std::size_t page = 2; page < (1200 - 3 - 20) / 8; ++page) tables[0][page] = std::numeric_limits<std::int32_t>::min();
  CHECK(attend_on_device(rows, {item}, q, o, {.tables = tables}) == expected);
}

TEST_CASE("no visible key: out 0, lse -inf; items without queries; a batch without items") {
  const paged_rows<bf16> rows({.key_dim = 8, .value_dim = 8, .lengths = {0, 5, 40}});
  const std::vector<attend_item> batch = {rows.item(1, 0, 0), rows.item(0, 1, 0),  rows.item(2, 0, 1),
                                          rows.item(2, 2, 1), rows.item(0, 30, 3), rows.item(1, 0, 33)};
  const query_rows<float> q(33, 2, 8, 1);
  for (const dense_options& o : {dense_options{}, dense_options{.window = 4, .sink = 2}}) {
    check_device_dense(rows, batch, q, o);
    const auto r = attend_on_device(rows, batch, q, o);
    for (std::size_t d = 0; d < 16; ++d) CHECK(r.out[d] == 0);
    CHECK(r.lse[0] == -infinity);
  }
  CHECK(attend_on_device(rows, {}, query_rows<float>(0, 2, 8, 1)).out.empty());
}

TEST_CASE("an item alone gives the bits that it gives in a batch, whatever the launch is planned for, on every run") {
  const paged_rows<bf16> rows({.heads = 2, .page_tokens = 64, .key_dim = 24, .value_dim = 40, .lengths = {1700, 300, 5, 900}});
  const std::vector<attend_item> batch = {rows.item(0, 1, 0), rows.item(1, 60, 1), rows.item(2, 5, 61), rows.item(3, 20, 66)};
  const query_rows<float> q(86, 6, 24, 2);
  const auto together = attend_on_device(rows, batch, q);
  CHECK(attend_on_device(rows, batch, q) == together);
  CHECK(attend_on_device(rows, batch, q, {}, {.most_queries = 1000, .longest = 1000000}) == together);
  for (const attend_item& item : batch) {
    attend_item alone = item;
    alone.first = 0;
    for (const std::int64_t longest : {std::int64_t{0}, std::int64_t{40000}}) {
      const auto part = attend_on_device(rows, {alone}, q.rows(item.first, item.queries), {}, {.longest = longest});
      const auto from = [&](const auto& all, std::size_t n) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(item.first) * n);
        return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(item.queries) * n));
      };
      CHECK(part.out == from(together.out, 6 * 40));
      CHECK(part.lse == from(together.lse, 6));
    }
  }
}

TEST_CASE("what lies outside of the rows changes nothing: zero, NaN and infinity give the same bits") {
  for (const std::int64_t queries : {1, 30}) {
    for (const int dim : {7, 46, 128}) {
      std::vector<dense_result<float>> results;
      for (const float poison : {0.0f, quiet_nan, infinity, -infinity}) {
        const paged_rows<bf16> rows(
            {.heads = 2, .key_dim = dim, .value_dim = dim, .lengths = {77, 330}, .offset = 1, .gap = 3, .poison = poison});
        results.push_back(
            attend_on_device(rows, {rows.item(0, queries, 0), rows.item(1, queries, queries)}, query_rows<float>(2 * queries, 2, dim, 3)));
      }
      for (const auto& r : results) CHECK(r == results[0]);
    }
  }
}

TEST_CASE_TEMPLATE("rows behind a mask change nothing, whatever they hold; visible NaN shows", E, float, bf16, kvx::half) {
  // The last token's row is spoiled: only the last query may see it. With a window, an old row too: only early queries may.
  for (const std::int64_t queries : {3, 20, 60}) {
    for (const float spoil : {quiet_nan, infinity}) {
      paged_rows<E> rows({.heads = 1, .key_dim = 12, .value_dim = 12, .lengths = {70}});
      const attend_item item = rows.item(0, queries, 0);
      const query_rows<float> q(queries, 2, 12, 8);
      const dense_options o{.window = 16, .sink = 1};
      const auto before = attend_on_device(rows, {item}, q, o);
      for (int d = 0; d < 12; ++d) rows.key(0, 69, 0)[d] = rows.value(0, 69, 0)[d] = round_to<E>(spoil);
      for (int d = 0; d < 12; ++d) rows.key(0, 5, 0)[d] = rows.value(0, 5, 0)[d] = round_to<E>(spoil);
      const auto after = attend_on_device(rows, {item}, q, o);
      const double unit = queries * 2 <= 16 || std::is_same_v<E, float> ? 1e-5 : std::is_same_v<E, bf16> ? 4e-2 : 5e-3;
      std::size_t clean = 0;
      for (std::int64_t i = 0; i < queries; ++i) {
        const std::int64_t position = 70 - queries + i;
        const bool sees = position == 69 || (position >= 5 && position <= 20);
        for (std::size_t j = 0; j < 24; ++j) {
          const auto at = static_cast<std::size_t>(i) * 24 + j;
          const auto* const head = q.data.data() + at / 12 * 12;
          if (sees && spoil == infinity && std::all_of(head, head + 12, [](float x) { return x < 0; })) {
            CHECK(std::isfinite(after.out[at]));  // its score is -inf, so it is no row
          } else if (sees) {
            CHECK_FALSE(std::isfinite(after.out[at]));
          } else {
            clean += static_cast<double>(std::abs(after.out[at] - before.out[at])) < unit;
          }
        }
      }
      std::int64_t blind = 0;
      for (std::int64_t p = 70 - queries; p < 69; ++p) blind += p < 5 || p > 20;
      CHECK(clean == static_cast<std::size_t>(blind) * 24);
    }
  }
}

TEST_CASE_TEMPLATE("scores of -inf have no weight, all of them are no key, NaN among them shows", E, float, bf16, kvx::half) {
  for (const std::int64_t queries : {1, 40}) {
    paged_rows<E> rows({.key_dim = 2, .value_dim = 3, .lengths = {100}});
    const attend_item item = rows.item(0, queries, 0);
    query_rows<float> q(queries, 1, 2, 8);
    for (float& x : q.data) x = 1;
    const auto spoil = [&](std::int64_t first, std::int64_t last, float k) {
      for (std::int64_t t = first; t < last; ++t) rows.key(0, t, 0)[0] = round_to<E>(k);
    };
    spoil(0, 30, -infinity);
    check_device_dense(rows, {item}, q);
    spoil(0, 100, -infinity);
    auto r = attend_on_device(rows, {item}, q);
    CHECK(r.out[0] == 0);
    CHECK(r.lse[0] == -infinity);
    spoil(3, 4, quiet_nan);
    r = attend_on_device(rows, {item}, q);
    CHECK(std::isnan(r.out[0]));
    CHECK(std::isnan(r.lse[0]));
  }
}

TEST_CASE("misuse is refused before anything is launched") {
  const paged_rows<bf16> rows({.heads = 2, .key_dim = 8, .value_dim = 8, .lengths = {5}});
  const attend_item item = rows.item(0, 1, 0);
  CHECK_THROWS_AS(attend_on_device(rows, {item}, query_rows<float>(1, 3, 8, 1)), usage_error);  // 3 heads over 2
  CHECK_THROWS_AS(attend_on_device(rows, {item}, query_rows<float>(1, 2, 9, 1)), usage_error);  // 9 components for 8
  CHECK_THROWS_AS(attend_on_device(rows, {item}, query_rows<float>(1, 2, 8, 1), {}, {.short_scratch = 1}), usage_error);
  CHECK_THROWS_AS(attend_on_device(rows, {item}, query_rows<float>(1, 2, 8, 1), {}, {.short_tickets = 1}), usage_error);
}
