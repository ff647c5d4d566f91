// What is measured on heads: searches stay in their zone, take as many as they are asked for, and find what there is to find.

#include <coded_keys.hpp>
#include <head_metrics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t tokens = 2048;

/// Keys that drift, queries near some of them.
quality::head_rows random_head(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  quality::head_rows head;
  head.dim = 64;
  head.group = 3;
  head.pairs = {kvx::rope_pairs::order::interleaved, 64};
  std::vector<float> mean(64);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (float& m : mean) {
      m += .03F * normal(random);
      head.keys.push_back(m + normal(random));
    }
  }
  const auto ask = [&](std::vector<float>& to) {
    const std::int64_t near = random() % tokens;
    for (int d = 0; d < 64; ++d) to.push_back(2 * head.key(near)[d] + normal(random));
  };
  head.positions = {1800, 1999, 2047};
  for (int i = 0; i < 9; ++i) ask(head.queries);
  for (int i = 0; i < 60; ++i) ask(head.early_queries);
  for (int i = 0; i < tokens / 8 * 3; ++i) ask(head.eighth_queries);
  return head;
}

std::span<const float> first_queries(const quality::head_rows& head) { return {head.query(0, 0), 3 * 64}; }

}  // namespace

TEST_CASE("exact logits are products, and their best are the best of a sort") {
  const auto head = random_head(1);
  const auto logits = quality::exact_logits(head, 1);
  REQUIRE(logits.size() == 3 * 2000);
  const double dot = std::inner_product(head.query(1, 2), head.query(1, 2) + 64, head.key(77), 0.0);
  CHECK(logits[2 * 2000 + 77] == doctest::Approx(dot / 8).epsilon(1e-5));

  const quality::searched zone = quality::zone_of(head.positions[1]);
  CHECK(zone.begin == 4);
  CHECK(zone.end == 1743);
  std::vector<std::int32_t> order(static_cast<std::size_t>(zone.size()));
  std::iota(order.begin(), order.end(), 4);
  const auto sum = [&](std::int32_t t) {
    const auto i = static_cast<std::size_t>(t);
    return logits[i] + logits[2000 + i] + logits[4000 + i];
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return sum(a) > sum(b); });
  order.resize(50);
  std::sort(order.begin(), order.end());
  CHECK(quality::exact_best(logits, 3, zone, 50) == order);
}

TEST_CASE("a search for all finds all, and one for some finds some, in order, inside the zone") {
  const auto head = random_head(2);
  const kvx::key_sketch sketch;
  const quality::coded_keys coded(head.keys, head.dim, sketch, quality::balance_of(head, head.pairs));
  const quality::searched zone{4, 1543};
  std::vector<std::int32_t> all(static_cast<std::size_t>(zone.size()));
  std::iota(all.begin(), all.end(), 4);
  const kvx::bucket_scoring mean{kvx::bucket_scoring::rule::sign_sum, kvx::bucket_scoring::query::mean_query};
  for (const auto& by : {kvx::bucket_scoring{}, mean, kvx::voting}) {
    CHECK(coded.candidates(first_queries(head), zone, by, 1) == all);
    const auto some = coded.candidates(first_queries(head), zone, by, .1, .3);
    CHECK(some.size() == 154);
    CHECK(std::is_sorted(some.begin(), some.end()));
    CHECK(quality::recall(some, all) == 1);
    CHECK(quality::recall(all, some) == doctest::Approx(154.0 / 1539));
  }
  const std::vector<float> resident(3, 0.0F);
  CHECK(coded.best_by_code(first_queries(head), zone, {}, resident, 5000) == all);
  CHECK(coded.best_by_code(first_queries(head), zone, {}, resident, 100).size() == 100);
}

TEST_CASE("metrics are shares; finer codes find more, and page means help where keys drift") {
  const std::vector<quality::head_rows> heads = {random_head(3), random_head(4)};
  const kvx::host exec{.threads = 2};
  const auto value = [&](std::string_view name) {
    for (const quality::head_metric& m : quality::all_head_metrics()) {
      if (m.name != name) continue;
      const auto values = quality::mean_over(exec, m, heads);
      REQUIRE(values.size() == 3);
      return std::accumulate(values.begin(), values.end(), 0.0) / 3;
    }
    FAIL("no metric of that name: ", name);
    return 0.0;
  };
  for (const quality::head_metric& m : quality::all_head_metrics()) {
    CAPTURE(m.name);
    CHECK(value(m.name) > (m.name == "group_rule_gain" ? -.05 : .2));
    CHECK(value(m.name) <= 1);
    CHECK(quality::wanted(m, m.name));
    CHECK(quality::wanted(m, "") == !m.on_request);
  }
  CHECK(value("rerank8_recall128") > .97);
  CHECK(value("rerank8_recall128") > value("rerank4_recall128"));
  CHECK(value("recall128_default_10") > value("recall128_signsum_10") + .1);
  CHECK(value("recall128_default_10") > value("recall128_default_5"));
  CHECK(value("mass128_softmax_sum") - value("mass128_mean_query") == doctest::Approx(value("group_rule_gain")));
}

TEST_CASE("metrics of pages are shares and quotients; what looks at all tokens finds most") {
  const std::vector<quality::head_rows> heads = {random_head(5)};
  const auto value = [&](std::string_view name) {
    for (const quality::head_metric& m : quality::all_page_metrics()) {
      if (m.name == name) return quality::summary_of(kvx::host{.threads = 1}, m, heads).mean;
    }
    FAIL("no metric of that name: ", name);
    return 0.0;
  };
  const double positional = value("share_positional"), bisection = value("share_bisection");
  CHECK(positional > .1);
  CHECK(bisection > positional);
  CHECK(bisection <= 1);
  CHECK(value("best_member_vs_oracle") <= 1);
  CHECK(value("tree_vs_brute") > .8);
  CHECK(value("tree_vs_brute") == doctest::Approx(value("needle_worst_head")));  // one head
  CHECK(value("page_fill") == 1);
}
