// Attention in tiers is what its definition says, and attention with rows alone where the tiers are left out.

#include "../support/thread_pool.hpp"
#include "../support/tiered_case.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

retrieve_shape shape_of(int dim, int group, std::vector<std::int64_t> lengths, int page_tokens = 32) {
  return {.rows = {.heads = 2, .page_tokens = page_tokens, .key_dim = dim, .value_dim = 1 + dim * 37 % 90, .lengths = std::move(lengths)},
          .group = group};
}

/// Options with every V read, so that the definition can be met.
retrieve_options with(std::int64_t keep, double fraction, bool coded = true, bool tail = true) {
  return {.keep = keep, .breadth = {.fraction = fraction, .per_kept = 0}, .others = {coded, tail, 0}};
}

}  // namespace

TEST_CASE("what is attended to is the definition's: exact, coded, tail, in one softmax") {
  for (const int dim : {8, 20, 46, 64, 72, 80, 96, 128, 192}) {
    for (const int group : {1, 2, 3, 4, 7}) {
      if (group > 4 && dim > 64) continue;
      CAPTURE(dim);
      CAPTURE(group);
      const tiered_case<4> c(shape_of(dim, group, {400, 40, 333}));
      for (const retrieve_options& o :
           {with(20, .1), with(0, .1), with(5, .5), with(0, .9), with(20, .1, true, false), with(20, .1, false)}) {
        CAPTURE(o.keep);
        CAPTURE(o.others.coded);
        CAPTURE(o.others.tail);
        CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
      }
    }
  }
}

TEST_CASE("two bits a value, means alone; soft caps, scales; several new tokens; pages of 16 and 64") {
  for (const int P : {16, 64}) {
    retrieve_shape s = shape_of(40, 3, {500, 100, 301}, P);
    s.queries = 3;
    retrieve_options o = with(10, .15);
    CHECK(distance(tiered_case<2>(s).attend(o), tiered_case<2>(s).in_tiers(o)) <= 1);
    CHECK(distance(tiered_case<0>(s).attend(o), tiered_case<0>(s).in_tiers(o)) <= 1);
    o.scale = .3f;
    o.soft_cap = 2;
    CHECK(distance(tiered_case<4>(s).attend(o), tiered_case<4>(s).in_tiers(o)) <= 1);
    s.by.of = bucket_scoring::query::mean_query;
    s.rule.by = group_rule::kind::mean;
    CHECK(distance(tiered_case<2>(s).attend(o), tiered_case<2>(s).in_tiers(o)) <= 1);
  }
}

TEST_CASE("pages of one token, of two, of as many as a tail needs at least: one member, or all of them") {
  for (const int P : {1, 2, 4, 8}) {
    CAPTURE(P);
    const tiered_case<4> c(shape_of(24, 2, {150, 37}, P));
    for (const retrieve_options& o : {with(4, .2), with(0, .1), with(4, .1, false), with(150, 1)})
      CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
  }
}

TEST_CASE("every length around pages and zones") {
  for (std::int64_t n = 3; n <= 120; ++n) {
    CAPTURE(n);
    const tiered_case<4> c({.rows = {.page_tokens = 16, .key_dim = 24, .value_dim = 8, .lengths = {n, 200}}, .queries = 2});
    for (const retrieve_options& o : {with(3, .2), with(0, .2), with(3, .2, false), with(0, .01)})
      CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
  }
}

TEST_CASE("keep covers the zone: dense attention; a page that is all taken adds nothing, bit for bit") {
  for (const int dim : {16, 64, 80}) {
    const tiered_case<4> c(shape_of(dim, 2, {1, 36, 64, 101, 300}));
    CHECK(distance(c.attend({.keep = everything}), c.dense({})) <= 1);
    CHECK(c.attend({.keep = everything}) == c.attend<rsq_ip<4>>({.keep = everything}));
    CHECK(c.attend(with(300, 1)) == c.attend<rsq_ip<4>>(with(300, 1)));
  }
}

TEST_CASE("no coded rows and no tail: ParisKV, bit for bit") {
  for (const int group : {1, 4}) {
    const tiered_case<4> c(shape_of(64, group, {400, 40, 700}));
    for (const std::int64_t keep : {0, 1, 30}) CHECK(c.attend(with(keep, .1, false, false)) == c.attend<rsq_ip<4>>(with(keep, .1)));
    CHECK(distance(c.attend(with(30, .1)), c.dense({})) < distance(c.attend(with(30, .1, false, false)), c.dense({})));
  }
}

TEST_CASE("nothing exact: no row of the zone is read") {
  tiered_case<4> c(shape_of(64, 2, {400}, 64));
  const retrieved before = c.attend(with(0, .1));
  for (std::int64_t t = 4; t < c.end_of_zone(0); ++t) {
    for (int h = 0; h < 2; ++h) {
      std::fill_n(c.rows.key(0, t, h), 64, quiet_nan);
      std::fill_n(c.rows.value(0, t, h), 1 + 64 * 37 % 90, quiet_nan);
    }
  }
  CHECK(c.attend(with(0, .1)) == before);
}

TEST_CASE("values and keys that are not finite count nothing where rows are not read, and their pages have no tail") {
  for (const float bad : {quiet_nan, infinity, -infinity}) {
    tiered_case<4> c(shape_of(48, 3, {400, 200}, 64));
    c.rows.value(0, 70, 0)[3] = bad;
    c.rows.value(1, 20, 1)[0] = bad;
    c.rows.key(0, 200, 1)[7] = bad;
    c.encode();
    for (const retrieve_options& o : {with(10, .1), with(0, .1), with(400, 1), with(10, .1, false)}) {
      const retrieved got = c.attend(o);
      CHECK(std::all_of(got.out.begin(), got.out.end(), [](float x) { return x - x == 0; }));
      CHECK(distance(got, c.in_tiers(o)) <= 1);
    }
    tiered_case<0> means(shape_of(48, 3, {400, 200}, 64));
    means.rows.value(0, 70, 0)[3] = bad;
    means.encode();
    CHECK(distance(means.attend(with(10, .1)), means.in_tiers(with(10, .1))) <= 1);
  }
}

TEST_CASE("pages with broken keys are taken as coded up to a bound, beyond it none of them is") {
  for (const int broken : {1, 2, 9}) {
    CAPTURE(broken);
    tiered_case<4> c(shape_of(40, 2, {900}, 64));
    for (int i = 0; i < broken; ++i) c.rows.value(0, 70 + 64 * i, 0)[0] = quiet_nan;
    c.encode();
    for (const retrieve_options& o : {with(10, .02), with(0, .02)}) CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
  }
}

TEST_CASE("constant values: the output is the constant") {
  tiered_case<2> c(shape_of(64, 2, {500}));
  for (std::int64_t t = 0; t < 500; ++t) {
    for (int h = 0; h < 2; ++h) std::fill_n(c.rows.value(0, t, h), 1 + 64 * 37 % 90, 2.5f);
  }
  c.encode();
  for (const float x : c.attend(with(10, .1)).out) CHECK(std::abs(x - 2.5f) < 1e-5f);
}

TEST_CASE("skipping values moves outputs by no more than it says") {
  tiered_case<4> c(shape_of(64, 4, {700}));
  for (float& x : c.q) x *= 3;  // logits further apart
  retrieve_options o = with(5, .3);
  const retrieved all = c.attend(o);
  const auto moved = [&](float skip) {
    o.others.skip = skip;
    const retrieved got = c.attend(o);
    CHECK(got.lse == all.lse);
    float most = 0;
    for (std::size_t i = 0; i < all.out.size(); ++i) most = std::max(most, std::abs(got.out[i] - all.out[i]));
    return most;
  };
  CHECK(moved(.125f) > 0);
  CHECK(moved(.125f) < .125f * 5);  // components of normal values are within 5 of their mean
  CHECK(moved(1) < 5);
  CHECK(moved(.125f) < moved(1));
}

TEST_CASE("a budget of the layer: the best rows of all heads together, as many as the heads would have had") {
  retrieve_shape s = shape_of(40, 2, {400, 90, 300});
  s.rows.heads = 3;
  s.queries = 2;
  tiered_case<4> c(s);
  for (std::size_t i = 0; i < c.q.size(); ++i) c.q[i] *= static_cast<float>(1 + i / (2 * 40) % 3);  // heads that are more and less sure
  std::vector<std::int64_t> counts;
  for (const std::int64_t keep : {1, 12, 30}) {
    retrieve_options o{.keep = keep, .breadth = {.fraction = .3, .per_kept = 0}, .others = {false, false}};
    const retrieved own = c.attend(o);
    o.budget.of = retrieve_budget::kind::layer;
    const retrieved pooled = c.attend(o);
    CHECK(distance(pooled, c.pooled(o, counts)) <= 1);
    CHECK(c.attend<rsq_ip<4>>(o) == pooled);
    CHECK(c.attend(o, {.threads = 4, .parallel = std_threads()}) == pooled);
    if (keep > 1) CHECK(*std::max_element(counts.begin(), counts.end()) > keep);
    CHECK(own.out != pooled.out);
    o.others = {.skip = 0};  // what is not chosen is coded
    CHECK(distance(c.attend(o), c.in_tiers(o)) <= 1);
  }
  CHECK(distance(c.attend({.keep = everything, .budget = {retrieve_budget::kind::layer}}), c.dense({})) <= 1);
  s.rows.heads = 1;
  const tiered_case<4> single(s);
  retrieve_options o = with(7, .2);
  const retrieved own = single.attend(o);
  o.budget.of = retrieve_budget::kind::layer;
  CHECK(single.attend(o) == own);
}

TEST_CASE("a budget by mass: rows until the estimates say that enough is held, at most keep") {
  tiered_case<4> c(shape_of(64, 2, {700}));
  for (float& x : c.q) x *= 2;
  const auto attend = [&](float mass, std::int64_t keep) {
    retrieve_options o{.keep = keep, .breadth = {.fraction = 1, .per_kept = 0}, .others = {false, false}};
    o.budget = {retrieve_budget::kind::mass, mass};
    return c.attend(o);
  };
  CHECK(distance(attend(1, 700), c.dense({})) <= 1);
  CHECK(attend(0, 700) == c.attend<rsq_ip<4>>({.keep = 0, .breadth = {.fraction = 1, .per_kept = 0}}));
  CHECK(attend(1, 25) == c.attend<rsq_ip<4>>({.keep = 25, .breadth = {.fraction = 1, .per_kept = 0}}));
  const auto dense = c.dense({});
  const retrieved got = attend(.9f, 700);
  for (std::size_t h = 0; h < got.lse.size(); h += 2) {  // the mean of a group's heads; estimates are a few percent off
    const double held =
        (std::exp(static_cast<double>(got.lse[h]) - dense.lse[h]) + std::exp(static_cast<double>(got.lse[h + 1]) - dense.lse[h + 1])) / 2;
    CHECK(held > .85);
    CHECK(held < .95);
  }
}

TEST_CASE("any number of threads gives the same bits") {
  const tiered_case<4> c(
      {.rows = {.heads = 3, .page_tokens = 64, .key_dim = 64, .value_dim = 64, .lengths = {900, 31, 2000, 500}}, .queries = 2});
  const retrieved one = c.attend(with(40, .1));
  for (const int threads : {2, 5}) CHECK(c.attend(with(40, .1), {.threads = threads, .parallel = std_threads()}) == one);
}
