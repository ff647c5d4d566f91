// Whole pages as the unit: those that hold the most candidates of sign buckets, and pages that layers and steps use again.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::feed, test::tokens;
using route = attend_options::route;

constexpr page_shape small_page{.tokens = 8, .key_dim = 12, .value_dim = 10};

geometry layers(int n) {
  return {.layers = n,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 900,
          .max_sequences = 3,
          .kinds = std::vector<layer_kind>(static_cast<std::size_t>(n), layer_kind::retrieve())};
}

template <class Cache>
std::vector<float> attend(Cache& c, const host& exec, const step& open, test::token first, int layer, attend_options how) {
  const auto q = test::rows_of<float>(tokens(first, open.tokens()), test::part::query, layer, 4, small_page.key_dim);
  std::vector<float> out(static_cast<std::size_t>(open.tokens()) * 4 * small_page.value_dim);
  how.path = route::retrieve;
  c.attend(exec, open, layer, q.data(), out.data(), how);
  return out;
}

}  // namespace

TEST_CASE("sign buckets by pages: whole pages, those with the most candidates, dense where all are kept") {
  using layout = paged<float, small_page, zones{.sink = 4, .local = 16}>;
  using by_page = cache<host, spec<layout, sign_buckets<key_sketch{.balance = 0}>, fullest_pages>>;
  const host exec = test::one_thread();
  by_page c(exec, {}, layers(1));
  const sequence s = c.open(exec);
  feed(c, exec, s, tokens(1, 400));
  step open = c.begin(exec, {{s, 1}});
  append_all(c, exec, open, tokens(900, 1));
  CHECK_THROWS_AS(attend(c, exec, open, 900, 0, {.keep = 7}), usage_error);
  std::vector<float> dense(4 * small_page.value_dim);
  const auto q = test::rows_of<float>(tokens(900, 1), test::part::query, 0, 4, small_page.key_dim);
  c.attend(exec, open, 0, q.data(), dense.data(), {.path = route::dense});
  const auto all = attend(c, exec, open, 900, 0, {.keep = 1000, .breadth = {.fraction = 1}});
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(std::abs(all[i] - dense[i]) < 1e-5f);
  attention_audit few, more;
  constexpr search_breadth half_of_all{.fraction = .5, .per_kept = 0};
  const auto two = attend(c, exec, open, 900, 0, {.keep = 16, .breadth = half_of_all, .audit = &few});
  CHECK(two == attend(c, exec, open, 900, 0, {.keep = 23, .breadth = half_of_all}));  // a part of a page is none
  attend(c, exec, open, 900, 0, {.keep = 160, .audit = &more});
  CHECK(few.mean_mass() < more.mean_mass());
  const sequence fork = c.fork(exec, s, 201);
  for (const std::int64_t cut : {201, 90}) {
    c.truncate(exec, fork, cut);
    feed(c, exec, fork, tokens(static_cast<test::token>(1 + cut), 400 - cut));
    step of_fork = c.begin(exec, {{fork, 1}});
    append_all(c, exec, of_fork, tokens(900, 1));
    CHECK(attend(c, exec, of_fork, 900, 0, {.keep = 16, .breadth = half_of_all}) == two);
  }

  const bucket_zone zone{
      small_page, key_columns_of(std::array{c.column(0, 0), c.column(0, 1), c.column(0, 2), c.column(0, 3), c.column(0, 4)}),
      1,          c.pages(0, s).data(),
      4,          384};
  std::vector<float> counts(48);
  std::vector<std::int32_t> pages(48), ids(384);
  const std::vector<std::int32_t> candidates = {4, 9, 10, 17, 18, 30, 31, 383};
  const std::int64_t n = tokens_of_fullest(exec, zone, candidates, 24, counts, pages.data(), ids.data());
  ids.resize(static_cast<std::size_t>(n));
  std::vector<std::int32_t> expected;
  for (std::int32_t t = 8; t < 32; ++t) expected.push_back(t);  // two candidates each, where page 0 and 47 have one
  CHECK(ids == expected);
}

TEST_CASE("layers and steps take the pages that the first of them has found") {
  constexpr dci_shape shape_of_blocks{.block = 32, .by = dci_shape::metric::keys};
  using tree = spec<paged<float, small_page, zones{.sink = 16, .local = 16}>, dci_tree<shape_of_blocks>>;
  const host exec = test::one_thread();
  tree again;
  again.index.reuse = {.layers = 2, .steps = 4};
  cache<host, tree> plain(exec, {}, layers(3)), c(exec, again, layers(3));
  constexpr std::int64_t of_sequence = 2 * 2 * (32 / 4 + 2) * 272;  // layers that search, heads, places
  CHECK(c.bytes(layers(3), again).selections == 3 * of_sequence);
  CHECK(c.bytes(layers(3), again).total() == c.bytes(layers(3)).total() + 3 * of_sequence);
  CHECK(c.stats().selection_bytes == 0);
  const sequence s = c.open(exec), t = plain.open(exec);
  feed(c, exec, s, tokens(1, 400));
  feed(plain, exec, t, tokens(1, 400));
  int differ[3] = {};
  const auto advance = [&](std::int64_t position, std::int64_t count, bool keep) {
    step a = c.begin(exec, {{s, count}}), b = plain.begin(exec, {{t, count}});
    const auto ids = tokens(static_cast<test::token>(1000 + position), count);
    append_all(c, exec, a, ids);
    append_all(plain, exec, b, ids);
    std::vector<float> all;
    for (int layer = 0; layer < 3; ++layer) {
      const auto x = attend(c, exec, a, ids[0], layer, {.keep = 32}), y = attend(plain, exec, b, ids[0], layer, {.keep = 32});
      if (position % 4 == 0 && count == 1 && layer != 1) CHECK(x == y);
      differ[layer] += x != y ? 1 : 0;
      all.insert(all.end(), x.begin(), x.end());
    }
    if (keep) {
      c.commit(exec, a);
      plain.commit(exec, b);
    }
    return all;
  };
  std::vector<std::vector<float>> first;
  for (std::int64_t p = 400; p < 412; ++p) first.push_back(advance(p, 1, true));
  CHECK(plain.stats().selection_bytes == 0);
  CHECK(c.stats().selection_bytes == of_sequence);
  CHECK(c.stats().near_bytes() == plain.stats().near_bytes() + of_sequence);
  CHECK(differ[0] > 3);
  CHECK(differ[1] > 9);
  CHECK(differ[2] > 3);

  // Dropped steps and cuts leave nothing to take; tokens of one step are as those of many.
  c.truncate(exec, s, 401);
  plain.truncate(exec, t, 401);
  advance(403, 1, false);
  c.truncate(exec, s, 400);
  plain.truncate(exec, t, 400);
  for (std::int64_t p = 400; p < 404; ++p) CHECK(advance(p, 1, true) == first[static_cast<std::size_t>(p - 400)]);
  const auto together = advance(404, 4, true);
  const std::size_t row = 4 * small_page.value_dim;
  int wrong = 0;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (std::size_t i = 0; i < 4; ++i) {
      wrong += std::equal(together.begin() + static_cast<std::ptrdiff_t>((layer * 4 + i) * row),
                          together.begin() + static_cast<std::ptrdiff_t>((layer * 4 + i + 1) * row),
                          first[4 + i].begin() + static_cast<std::ptrdiff_t>(layer * row))
                   ? 0
                   : 1;
    }
  }
  CHECK(wrong == 0);

  // What a dropped step found is not taken by a layer whose source has not searched in this one.
  c.truncate(exec, s, 400);
  plain.truncate(exec, t, 400);
  advance(703, 1, false);
  step a = c.begin(exec, {{s, 1}}), b = plain.begin(exec, {{t, 1}});
  append_all(c, exec, a, tokens(1400, 1));
  append_all(plain, exec, b, tokens(1400, 1));
  CHECK(attend(c, exec, a, 1400, 1, {.keep = 32}) == attend(plain, exec, b, 1400, 1, {.keep = 32}));

  again.index.reuse = {.layers = 1, .steps = 33};
  CHECK_THROWS_AS((cache<host, tree>(exec, again, layers(1))), usage_error);
  CHECK_THROWS_AS(c.bytes(layers(1), again), usage_error);
}
