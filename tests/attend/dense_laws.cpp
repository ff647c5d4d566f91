// What dense attention promises beside its values: the same bits for any threads and any batch, and nothing invisible touched.

#include "../support/dense_case.hpp"
#include "../support/thread_pool.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// A ragged batch with several pieces, prompts, and few rows at once.
struct ragged {
  paged_rows<bf16> rows{{.heads = 2, .page_tokens = 64, .key_dim = 24, .value_dim = 40, .lengths = {1700, 300, 5, 900}}};
  std::vector<attend_item> batch = {rows.item(0, 1, 0), rows.item(1, 60, 1), rows.item(2, 5, 61), rows.item(3, 20, 66)};
  query_rows<float> q{86, 6, 24, 2};
};

}  // namespace

TEST_CASE("any number of threads gives the same bits") {
  const ragged r;
  for (const instruction_set set : instruction_sets()) {
    const auto one = attend(r.rows.view(), r.batch, r.q, {}, set, {.threads = 1});
    for (const int threads : {2, 3, 7}) {
      for (int run = 0; run < 3; ++run)
        CHECK(attend(r.rows.view(), r.batch, r.q, {}, set, {.threads = threads, .parallel = std_threads()}) == one);
    }
    CHECK(attend(r.rows.view(), r.batch, r.q, {}, set, {.threads = 0, .parallel = serial()}) == one);
  }
}

TEST_CASE("an item alone gives the bits that it gives in a batch") {
  const ragged r;
  const auto together = attend(r.rows.view(), r.batch, r.q);
  for (const attend_item& item : r.batch) {
    attend_item alone = item;
    alone.first = 0;
    const auto part = attend(r.rows.view(), {&alone, 1}, r.q.rows(item.first, item.queries));
    const auto from = [&](const auto& all, std::size_t n) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(item.first) * n);
      return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(item.queries) * n));
    };
    CHECK(part.out == from(together.out, 6 * 40));
    CHECK(part.lse == from(together.lse, 6));
  }
}

TEST_CASE("what lies outside of the rows changes nothing: zero, NaN and infinity give the same bits") {
  for (const std::int64_t queries : {1, 30}) {
    for (const int dim : {7, 46, 128}) {
      std::vector<dense_result<float>> results;
      for (const float poison : {0.0f, quiet_nan, infinity, -infinity}) {
        const paged_rows<bf16> rows(
            {.heads = 2, .key_dim = dim, .value_dim = dim, .lengths = {77, 1030}, .offset = 1, .gap = 3, .poison = poison});
        const std::vector<attend_item> batch = {rows.item(0, queries, 0), rows.item(1, queries, queries)};
        results.push_back(attend(rows.view(), batch, query_rows<float>(2 * queries, 2, dim, 3)));
      }
      for (const auto& r : results) CHECK(r == results[0]);
    }
  }
}

TEST_CASE("rows behind a mask change nothing, whatever they hold; visible NaN shows") {
  // The last token's row is spoiled: only the last query may see it. With a window, an old row too: only early queries may.
  for (const std::int64_t queries : {3, 20, 60}) {
    for (const float spoil : {quiet_nan, infinity}) {
      paged_rows<float> rows({.heads = 1, .key_dim = 12, .value_dim = 12, .lengths = {70}});
      const attend_item item = rows.item(0, queries, 0);
      const query_rows<float> q(queries, 2, 12, 8);
      const dense_options o{.window = 16, .sink = 1};
      const auto before = attend(rows.view(), {&item, 1}, q, o);
      for (int d = 0; d < 12; ++d) rows.key(0, 69, 0)[d] = rows.value(0, 69, 0)[d] = spoil;
      for (int d = 0; d < 12; ++d) rows.key(0, 5, 0)[d] = rows.value(0, 5, 0)[d] = spoil;
      for (const instruction_set set : instruction_sets()) {
        const auto after = attend(rows.view(), {&item, 1}, q, o, set);
        std::size_t clean = 0;
        for (std::int64_t i = 0; i < queries; ++i) {
          const std::int64_t position = 70 - queries + i;
          const bool sees = position == 69 || (position >= 5 && position <= 20);
          for (std::size_t j = 0; j < 24; ++j) {
            const auto at = static_cast<std::size_t>(i) * 24 + j;
            if (sees) {
              CHECK_FALSE(std::isfinite(after.out[at]));
            } else {
              clean += std::abs(after.out[at] - before.out[at]) < 1e-5f;
            }
          }
        }
        std::int64_t blind = 0;
        for (std::int64_t p = 70 - queries; p < 69; ++p) blind += p < 5 || p > 20;
        CHECK(clean == static_cast<std::size_t>(blind) * 24);
      }
    }
  }
}

TEST_CASE("scores of -inf have no weight, all of them are no key, NaN among them shows") {
  for (const std::int64_t queries : {1, 40}) {
    paged_rows<float> rows({.key_dim = 2, .value_dim = 3, .lengths = {100}});
    const attend_item item = rows.item(0, queries, 0);
    query_rows<float> q(queries, 1, 2, 8);
    for (float& x : q.data) x = 1;
    const auto spoil = [&](std::int64_t first, std::int64_t last, float k) {
      for (std::int64_t t = first; t < last; ++t) rows.key(0, t, 0)[0] = k;
    };
    spoil(0, 30, -infinity);
    check_dense(rows.view(), {&item, 1}, q);
    spoil(0, 100, -infinity);
    auto r = attend(rows.view(), {&item, 1}, q);
    CHECK(r.out[0] == 0);
    CHECK(r.lse[0] == -infinity);
    spoil(3, 4, quiet_nan);
    r = attend(rows.view(), {&item, 1}, q);
    CHECK(std::isnan(r.out[0]));
    CHECK(std::isnan(r.lse[0]));
  }
}

TEST_CASE("rows and query rows of any stride; no lse") {
  const paged_rows<half> rows({.heads = 2, .key_dim = 10, .value_dim = 6, .lengths = {60}});
  const attend_item item = rows.item(0, 60, 0);
  const query_rows<float> q(60, 4, 10, 8);
  const auto expected = attend(rows.view(), {&item, 1}, q);
  // Components outermost: the innermost stride is 240.
  std::vector<float> turned(q.data.size()), out(60 * 4 * 6, quiet_nan);
  for (std::size_t row = 0; row < 240; ++row) {
    for (std::size_t d = 0; d < 10; ++d) turned[d * 240 + row] = q.data[row * 10 + d];
  }
  tensor_view<const float, 3> from(turned.data(), 60, 4, 10);
  from.strides[0] = 4, from.strides[1] = 1, from.strides[2] = 240;
  tensor_view<float, 3> to(out.data(), 60, 4, 6);
  to.strides[0] = 4, to.strides[1] = 1, to.strides[2] = 240;
  const host exec{.threads = 1};
  std::vector<std::byte> scratch(static_cast<std::size_t>(attend_dense_scratch(exec, rows.view(), {&item, 1}, 4)));
  attend_dense(exec, rows.view(), {&item, 1}, from, to, {}, {}, scratch);
  for (std::size_t row = 0; row < 240; ++row) {
    for (std::size_t d = 0; d < 6; ++d) REQUIRE(out[d * 240 + row] == expected.out[row * 6 + d]);
  }
}

TEST_CASE("misuse is refused before anything is written") {
  const paged_rows<bf16> rows({.heads = 2, .key_dim = 8, .value_dim = 8, .lengths = {5}});
  const attend_item item = rows.item(0, 1, 0);
  CHECK_THROWS_AS(attend(rows.view(), {&item, 1}, query_rows<float>(1, 3, 8, 1)), usage_error);  // 3 heads over 2
  CHECK_THROWS_AS(attend(rows.view(), {&item, 1}, query_rows<float>(1, 2, 9, 1)), usage_error);  // 9 components for 8
  const attend_item outside = rows.item(0, 1, 1);
  CHECK_THROWS_AS(attend(rows.view(), {&outside, 1}, query_rows<float>(1, 2, 8, 1)), usage_error);
  auto view = rows.view();
  view.page_tokens = 12;
  CHECK_THROWS_AS(attend(view, {&item, 1}, query_rows<float>(1, 2, 8, 1)), usage_error);
  std::vector<std::byte> small(16);
  float out[16];
  const query_rows<float> q(1, 2, 8, 1);
  CHECK_THROWS_AS(attend_dense(host{}, rows.view(), {&item, 1}, q.view(), tensor_view<float, 3>(out, 1, 2, 8), {}, {}, small), usage_error);
}
