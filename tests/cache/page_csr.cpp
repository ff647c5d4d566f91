// A paged cache seen from outside: page tables in CSR form and views, for kernels and caches that know nothing of it.

#include <support/feed.hpp>
#include <support/poison.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::feed, test::one_thread, test::part, test::token, test::tokens;

constexpr page_shape shape{.tokens = 4, .key_dim = 6, .value_dim = 3};
constexpr zones cut{.sink = 2, .local = 3};
using own_type = cache<host, spec<paged<half, shape, cut>, test::checksum_index>>;

geometry two_layers(layer_kind second = layer_kind::retrieve()) {
  return {.layers = 2, .kv_heads = 2, .query_heads = 4, .max_tokens = 200, .max_sequences = 8, .kinds = {layer_kind::dense(), second}};
}

/// What a kernel of somebody else may look like: attention of one query head over one sequence, from addresses alone.
template <class E>
std::vector<double> attention(const paged_view<E>& cache, std::int64_t b, std::int64_t head, const float* q) {
  std::vector<double> out(static_cast<std::size_t>(cache.rows.value_dim));
  double sum = 0;
  for (std::int64_t t = 0; t < cache.length(b); ++t) {
    double score = 0;
    for (int d = 0; d < cache.rows.key_dim; ++d)
      score += static_cast<double>(q[d]) * static_cast<double>(to_float(cache.key(b, head, t)[d]));
    const double weight = std::exp(score / std::sqrt(static_cast<double>(cache.rows.key_dim)));
    sum += weight;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * static_cast<double>(to_float(cache.value(b, head, t)[d]));
  }
  for (double& x : out) x /= sum;
  return out;
}

/// Sequences of 0 to 9 tokens that end at every slot of a page, one of them a fork, in an order that is not that of their opening.
struct fixture {
  host exec = one_thread();
  own_type c{exec, {}, two_layers()};
  std::vector<sequence> batch;
  std::vector<std::vector<token>> content;

  fixture() {
    for (const std::int64_t n : {9, 0, 3, 8, 5, 1}) {
      batch.push_back(c.open(exec));
      content.push_back(tokens(static_cast<token>(100 * n), n));
      feed(c, exec, batch.back(), content.back());
    }
    batch.push_back(c.fork(exec, batch[0], 6));
    content.push_back(tokens(900, 6));
    std::reverse(batch.begin(), batch.end());
    std::reverse(content.begin(), content.end());
    for (int layer = 0; layer < 2; ++layer) test::poison_free(c, layer, c.stats().pages_total, batch);
  }
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "one table for each sequence, empty ones too") {
  const page_csr csr = c.pages(0, batch);
  CHECK_NOTHROW(check(csr, shape.tokens, c.stats().pages_total, call_site::here()));
  CHECK(csr.last_page_len == std::vector<std::int32_t>{2, 1, 1, 4, 3, 0, 1});
  CHECK(csr.indptr == std::vector<std::int32_t>{0, 2, 3, 5, 7, 8, 8, 11});
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const auto row = static_cast<std::int64_t>(b);
    CHECK(csr.length(row, shape.tokens) == c.length(batch[b]));
    const auto table = c.pages(0, batch[b]);
    CHECK(std::equal(table.begin(), table.end(), csr.pages(row).begin(), csr.pages(row).end()));
  }
  CHECK(csr.pages(0)[1] == csr.pages(6)[1]);  // the fork's pages are those of its source
  CHECK(c.pages(0, std::span<const sequence>()).sequences() == 0);
}

TEST_CASE_FIXTURE(fixture, "a free function attends from a view and a table as the cache does") {
  for (int layer = 0; layer < 2; ++layer) {
    const page_csr csr = c.pages(layer, batch);
    for (std::size_t b = 0; b < batch.size(); ++b) {
      if (content[b].empty()) continue;
      // The cache attends before the last token is committed, the function after: the same rows.
      c.truncate(exec, batch[b], static_cast<std::int64_t>(content[b].size()) - 1);
      step last = c.begin(exec, {{batch[b], 1}});
      const std::span<const token> id = std::span(content[b]).last(1);
      append_all(c, exec, last, id);
      const auto q = test::rows_of<float>(id, part::query, layer, 4, shape.key_dim);
      std::vector<float> out(4 * shape.value_dim);
      c.attend(exec, last, layer, q.data(), out.data());
      c.commit(exec, last);
      const page_csr now = c.pages(layer, batch);
      for (int head = 0; head < 4; ++head) {
        const auto expected =
            attention(view_of(c.view(layer), now), static_cast<std::int64_t>(b), head / 2, q.data() + head * shape.key_dim);
        for (int d = 0; d < shape.value_dim; ++d)
          CHECK(std::abs(expected[static_cast<std::size_t>(d)] -
                         static_cast<double>(out[static_cast<std::size_t>(head * shape.value_dim + d)])) < 1e-6);
      }
    }
    CHECK(csr.last_page_len == c.pages(layer, batch).last_page_len);
  }
}

TEST_CASE("from a paged cache through its tables to an external one: the same bits") {
  fixture x;
  cache<host, spec<external<half, shape, cut>, test::checksum_index>> other(x.exec, {}, two_layers());
  for (int layer = 0; layer < 2; ++layer) other.bind(layer, x.c.view(layer));
  const page_csr csr = x.c.pages(1, x.batch);

  // All tokens at once, as one prompt of many sequences over rows that are there already; the paged cache takes them again.
  own_type again(x.exec, {}, two_layers());
  std::vector<advance> prompt, prompt_again;
  std::vector<token> all;
  std::vector<sequence> others;
  for (std::size_t b = 0; b < x.batch.size(); ++b) {
    const auto row = static_cast<std::int64_t>(b);
    others.push_back(other.open(x.exec));
    prompt.push_back({others.back(), csr.length(row, shape.tokens), csr.pages(row)});
    prompt_again.push_back({again.open(x.exec), csr.length(row, shape.tokens)});
    all.insert(all.end(), x.content[b].begin(), x.content[b].end());
  }
  step s = other.begin(x.exec, prompt), t = again.begin(x.exec, prompt_again);
  append_all(again, x.exec, t, all);
  for (int layer = 0; layer < 2; ++layer) other.append(x.exec, s, layer);
  CHECK(attend_all(other, x.exec, s, all) == attend_all(again, x.exec, t, all));
  other.commit(x.exec, s);

  for (std::size_t b = 0; b < others.size(); ++b) {
    CHECK(other.length(others[b]) == x.c.length(x.batch[b]));
    const auto mine = other.pages(1, others[b]), theirs = x.c.pages(1, x.batch[b]);
    REQUIRE(mine.size() == theirs.size());
    for (std::int64_t j = 0; j < edge(cut, other.length(others[b]), shape.tokens) / shape.tokens; ++j) {
      for (int h = 0; h < 2; ++h)
        CHECK(std::memcmp(other.column(1, 0).at(mine[static_cast<std::size_t>(j)], h),
                          x.c.column(1, 0).at(theirs[static_cast<std::size_t>(j)], h), sizeof(std::uint64_t)) == 0);
    }
  }
}

TEST_CASE("a window layer that has freed pages has no table in CSR form") {
  const host exec = one_thread();
  geometry g = two_layers(layer_kind::window(5));
  g.rollback = 0;
  own_type c(exec, {}, g);
  const std::vector<sequence> batch = {c.open(exec), c.open(exec)};
  feed(c, exec, batch[0], tokens(1, 20));
  feed(c, exec, batch[1], tokens(50, 5));
  CHECK(c.pages(0, batch).sequences() == 2);
  CHECK(c.pages(1, std::span(batch).last(1)).length(0, shape.tokens) == 5);
  try {
    c.pages(1, batch);
    FAIL("no throw");
  } catch (const usage_error& error) {
    CHECK(std::string(error.what()).find("page_csr.cpp:") != std::string::npos);
    CHECK(std::string(error.what()).find("pages: a window layer has freed pages of the sequence") != std::string::npos);
  }
}
