// Attention in tiers over semantic pages is what its definition says, and that with members alone where the tiers are left out.

#include "../support/page_tiers_case.hpp"
#include "../support/thread_pool.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

paged_shape rows_of(int dim, std::vector<std::int64_t> lengths, int page_tokens = 8) {
  return {.heads = 2, .page_tokens = page_tokens, .key_dim = dim, .value_dim = 1 + dim * 37 % 90, .lengths = std::move(lengths)};
}

/// Options with every V read, so that the definition can be met.
page_options with(std::int64_t keep, int pages = 0, bool coded = true, bool tail = true) {
  return {.keep = keep, .pages = {.pages = pages}, .others = {coded, tail, 0}};
}

}  // namespace

TEST_CASE("what is attended to is the definition's: exact, coded, the means of the other pages, in one softmax") {
  for (const int dim : {8, 20, 46, 80, 192}) {
    for (const int group : {1, 2, 3, 4, 7}) {
      if (group > 4 && dim > 64) continue;
      CAPTURE(dim);
      CAPTURE(group);
      const page_tiers_case<4> c(rows_of(dim, {300, 60}), group);
      for (const page_options& o :
           {with(10), with(0), with(5, 20), with(0, 3), with(10, 5, true, false), with(12, 6, false), with(0, 0, false)}) {
        CAPTURE(o.keep);
        CAPTURE(o.others.coded);
        CAPTURE(o.others.tail);
        CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
      }
    }
  }
}

TEST_CASE("two bits a value, means alone; soft caps, scales; several new tokens; pages of 4 and 16") {
  for (const int P : {4, 16}) {
    const paged_shape s = rows_of(40, {500, 100, 301}, P);
    page_options o = with(10, 6);
    CHECK(distance(page_tiers_case<2>(s, 3, 3).attend(o), page_tiers_case<2>(s, 3, 3).in_tiers(o)) <= 1);
    CHECK(distance(page_tiers_case<0>(s, 3, 3).attend(o), page_tiers_case<0>(s, 3, 3).in_tiers(o)) <= 1);
    o.scale = .3f;
    o.soft_cap = 2;
    CHECK(distance(page_tiers_case<4>(s, 3, 3).attend(o), page_tiers_case<4>(s, 3, 3).in_tiers(o)) <= 1);
  }
}

TEST_CASE("every length around blocks and zones") {
  for (std::int64_t n = 2; n <= 150; n += n < 40 ? 1 : 7) {
    CAPTURE(n);
    const page_tiers_case<4> c({.page_tokens = 8, .key_dim = 24, .value_dim = 8, .lengths = {n, 200}}, 2, 2);
    for (const page_options& o : {with(3, 2), with(0), with(8, 2, false)}) CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
  }
}

TEST_CASE("keep covers the zone: dense attention; pages that are all taken add nothing, bit for bit") {
  for (const int dim : {16, 80}) {
    const page_tiers_case<4> c(rows_of(dim, {1, 36, 64, 101, 300}), 2);
    CHECK(distance(c.attend({.keep = everything}), c.dense()) <= 1);
    CHECK(c.attend({.keep = everything}) == c.attend<rsq_ip<4>>({.keep = everything}));
    CHECK(c.attend(with(64, 8, true, false)) == c.attend<rsq_ip<4>>(with(64, 8)));  // all members of 8 pages
    CHECK(c.attend(with(64, 8)) != c.attend<rsq_ip<4>>(with(64, 8)));
  }
}

TEST_CASE("no coded rows and no tail: the best members alone, bit for bit") {
  for (const int group : {1, 4}) {
    const page_tiers_case<4> c(rows_of(64, {400, 40, 700}), group);
    for (const std::int64_t keep : {0, 1, 30}) CHECK(c.attend(with(keep, 0, false, false)) == c.attend<rsq_ip<4>>(with(keep)));
    CHECK(distance(c.attend(with(30, 15)), c.dense()) < distance(c.attend(with(30, 15, false, false)), c.dense()));
  }
}

TEST_CASE("nothing exact: no row of the zone is read") {
  page_tiers_case<4> c(rows_of(64, {400}), 2);
  const page_options all_pages = with(0, 1000);  // no search, which reads keys
  const retrieved before = c.attend(all_pages);
  for (std::int64_t t = c.cut.sink; t < c.zone(0).end; ++t) {
    for (int h = 0; h < 2; ++h) {
      std::fill_n(c.rows.key(0, t, h), 64, quiet_nan);
      std::fill_n(c.rows.value(0, t, h), 1 + 64 * 37 % 90, quiet_nan);
    }
  }
  CHECK(c.attend(all_pages) == before);
}

TEST_CASE("values and keys that cannot be averaged are in no page; pages of one member, and of none") {
  for (const float bad : {quiet_nan, infinity, -infinity, 0x1p60f}) {
    page_tiers_case<4> c(rows_of(48, {400, 200}), 3);
    c.rows.value(0, 70, 0)[3] = bad;
    c.rows.value(1, 20, 1)[0] = bad;
    c.rows.key(0, 200, 1)[7] = bad - bad;  // NaN, or 0
    for (std::int64_t t = 96; t < 119; ++t) c.rows.value(0, t, 0)[1] = bad;  // 9 of a block are left, then one
    for (std::int64_t t = 128; t < 159; ++t) c.rows.value(0, t, 0)[1] = bad;
    c.index();
    const dci_head<float> of = c.head(0, 0);
    CHECK(of.packed(c.shape, 12).count() == 8);
    CHECK(of.packed(c.shape, 13).count() == 1);
    CHECK(of.packed(c.shape, 16).count() == 1);
    CHECK(of.packed(c.shape, 17).count() == 0);
    const page_values<false> alone = values_of(page_values_of(c.columns()), of.column_pages[13], 0);
    CHECK(!is_nan(to_float(alone.scales[0])));
    CHECK(is_nan(to_float(alone.scales[1])));
    CHECK(*std::max_element(alone.codes + value_row_bytes(4, 1 + 48 * 37 % 90), alone.codes + 8 * value_row_bytes(4, 1 + 48 * 37 % 90)) ==
          0);
    const key_columns keys = codes_of(c.columns());
    CHECK(code_of(keys, of.column_pages[70 / 8], 0).norms[70 % 8] == never_found);
    CHECK(code_of(keys, of.column_pages[71 / 8], 0).norms[71 % 8] != never_found);
    for (const page_options& o : {with(10), with(0), with(400, 1000), with(300, 10), with(10, 10, false), with(0, 0, false)}) {
      const retrieved got = c.attend(o);
      CHECK(std::all_of(got.out.begin(), got.out.end(), [](float x) { return x - x == 0; }));
      CHECK(distance(got, c.in_tiers(o)) <= 1);
    }
  }
}

TEST_CASE("a key whose code cannot be read stays in the mean of its page") {
  page_tiers_case<4> c(rows_of(32, {200}), 2);
  c.rows.key(0, 100, 0)[3] = 0x1p80f;  // its page's codes are relative to a mean that is no one's
  c.index();
  for (const page_options& o : {with(6, 1000), with(6, 8), with(6, 1000, false)}) CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
}

TEST_CASE("constant values: the output is the constant") {
  page_tiers_case<2> c(rows_of(64, {500}), 2);
  for (std::int64_t t = 0; t < 500; ++t) {
    for (int h = 0; h < 2; ++h) std::fill_n(c.rows.value(0, t, h), 1 + 64 * 37 % 90, 2.5f);
  }
  c.index();
  for (const float x : c.attend(with(10)).out) CHECK(std::abs(x - 2.5f) < 1e-5f);
}

TEST_CASE("any number of threads gives the same bits") {
  const page_tiers_case<4> c({.heads = 3, .page_tokens = 16, .key_dim = 64, .value_dim = 64, .lengths = {900, 31, 2000, 500}}, 2, 2);
  const retrieved one = c.attend(with(40));
  for (const int threads : {2, 5}) CHECK(c.attend(with(40), {.threads = threads, .parallel = std_threads()}) == one);
}
