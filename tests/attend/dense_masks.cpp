// Windows, sinks, soft caps, scales and causality; a prompt in any chunks; sequences without keys.

#include "../support/dense_case.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

TEST_CASE("windows and sinks, narrower and wider than blocks, pieces and the sequence") {
  for (const std::int64_t length : {50, 200, 1300}) {
    const paged_rows<bf16> rows({.heads = 2, .page_tokens = 8, .key_dim = 16, .value_dim = 24, .lengths = {length, length}});
    const std::vector<attend_item> batch = {rows.item(0, 1, 0), rows.item(1, 40, 1)};
    const query_rows<float> q(41, 4, 16, 3);
    for (const std::int64_t window : {1, 2, 7, 63, 64, 65, 130, 600, 5000}) {
      for (const std::int64_t sink : {0, 1, 4, 70, 700}) {
        CAPTURE(length);
        CAPTURE(window);
        CAPTURE(sink);
        check_dense(rows.view(), batch, q, {.window = window, .sink = sink});
      }
    }
  }
}

TEST_CASE("pages that no query sees are not even looked up") {
  const paged_rows<bf16> rows({.page_tokens = 8, .key_dim = 16, .value_dim = 16, .lengths = {1200}});
  const query_rows<float> q(30, 1, 16, 3);
  for (const std::int64_t queries : {1, 30}) {
    attend_item item = rows.item(0, queries, 0);
    const dense_options o{.window = 20, .sink = 10};
    const auto expected = attend(rows.view(), {&item, 1}, q.rows(0, queries), o);
    std::vector<std::int32_t> table(item.pages, item.pages + 150);
    for (std::size_t page = 2; page < (1200 - 30 - 20) / 8; ++page) table[page] = std::numeric_limits<std::int32_t>::min();
    item.pages = table.data();
    CHECK(attend(rows.view(), {&item, 1}, q.rows(0, queries), o) == expected);
  }
}

TEST_CASE("soft cap and scale") {
  const paged_rows<float> rows({.heads = 2, .key_dim = 20, .value_dim = 12, .lengths = {150, 90}});
  const std::vector<attend_item> batch = {rows.item(0, 1, 0), rows.item(1, 30, 1)};
  const query_rows<float> q(31, 4, 20, 9);
  for (const float cap : {.5f, 5.0f, 50.0f}) {
    for (const float scale : {0.0f, 1.0f, -.3f}) check_dense(rows.view(), batch, q, {.scale = scale, .soft_cap = cap});
  }
  check_dense(rows.view(), batch, q, {.soft_cap = 3, .window = 10, .sink = 2});
}

TEST_CASE("a prompt in any chunks equals the prompt at once") {
  constexpr std::int64_t length = 300;
  const paged_rows<half> rows({.heads = 2, .page_tokens = 32, .key_dim = 40, .value_dim = 24, .lengths = {length}});
  const query_rows<float> q(length, 6, 40, 4);
  for (const dense_options& o : {dense_options{}, dense_options{.window = 50, .sink = 3}}) {
    const attend_item all = rows.item(0, length, 0);
    const dense_reference whole = dense_attention(rows.view(), {&all, 1}, q.view(), o);
    for (const std::int64_t chunk : {1, 5, 64, 77, 300}) {
      CAPTURE(chunk);
      dense_result<float> joined;
      for (std::int64_t first = 0; first < length; first += chunk) {
        const std::int64_t n = std::min(chunk, length - first);
        attend_item item = all;
        item.length = first + n;
        item.queries = n;
        const auto part = attend(rows.view(), {&item, 1}, q.rows(first, n), o);
        joined.out.insert(joined.out.end(), part.out.begin(), part.out.end());
        joined.lse.insert(joined.lse.end(), part.lse.begin(), part.lse.end());
      }
      check_close(joined, whole);
    }
  }
}

TEST_CASE("no visible key: out 0, lse -inf; items without queries; a batch without items") {
  const paged_rows<bf16> rows({.key_dim = 8, .value_dim = 8, .lengths = {0, 5, 40}});
  const std::vector<attend_item> batch = {rows.item(1, 0, 0), rows.item(0, 1, 0),  rows.item(2, 0, 1),
                                          rows.item(2, 2, 1), rows.item(0, 30, 3), rows.item(1, 0, 33)};
  const query_rows<float> q(33, 2, 8, 1);
  for (const dense_options& o : {dense_options{}, dense_options{.window = 4, .sink = 2}}) {
    check_dense(rows.view(), batch, q, o);
    const auto r = attend(rows.view(), batch, q, o);
    for (std::size_t d = 0; d < 16; ++d) CHECK(r.out[d] == 0);
    CHECK(r.lse[0] == -infinity);
  }
  CHECK(attend(rows.view(), {}, query_rows<float>(0, 2, 8, 1)).out.empty());
}
