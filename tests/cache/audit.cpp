// An audit of attend says what retrieval missed, and changes nothing else.

#include <support/feed.hpp>
#include <support/thread_pool.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::feed, test::tokens;

constexpr page_shape shape{.tokens = 16, .key_dim = 24, .value_dim = 16};
using cache_type = cache<host, spec<paged<float, shape, zones{.sink = 4, .local = 16}>, sign_buckets<key_sketch{.balance = 0}>, rsq_ip<4>>>;
constexpr std::int64_t queries = 3 * 4;

}  // namespace

TEST_CASE("an audit counts the mass that retrieval reaches and the error that it leaves") {
  const host exec = test::one_thread();
  cache_type c(exec, {},
               {.layers = 2, .kv_heads = 2, .query_heads = 4, .max_tokens = 400, .kinds = {layer_kind::dense(), layer_kind::retrieve()}});
  const sequence s = c.open(exec);
  feed(c, exec, s, tokens(1, 200));
  step step = c.begin(exec, {{s, 3}});
  append_all(c, exec, step, tokens(300, 3));
  const auto q = test::rows_of<float>(tokens(300, 3), test::part::query, 1, 4, shape.key_dim);
  std::vector<float> out(queries * shape.value_dim), plain(out), dense(out), lse(queries), dense_lse(queries);
  attention_audit audit;
  attend_options how{.keep = 10, .path = attend_options::route::retrieve, .lse = lse.data()};
  c.attend(exec, step, 1, q.data(), plain.data(), how);
  c.attend(exec, step, 1, q.data(), dense.data(), {.path = attend_options::route::dense, .lse = dense_lse.data()});
  how.audit = &audit;
  how.lse = nullptr;
  c.attend(exec, step, 1, q.data(), out.data(), how);
  CHECK(out == plain);
  CHECK(audit.tokens == 3);
  CHECK(audit.pairs == queries);
  double mass = 0, error = 0;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    mass += std::exp(double{lse[i]} - double{dense_lse[i]});
    double difference = 0, norm = 0;
    for (std::size_t d = i * shape.value_dim; d < (i + 1) * shape.value_dim; ++d) {
      difference += std::pow(double{plain[d]} - double{dense[d]}, 2);
      norm += std::pow(double{dense[d]}, 2);
    }
    error += std::sqrt(difference / norm);
  }
  CHECK(audit.mean_mass() == doctest::Approx(mass / queries));
  CHECK(audit.mean_error() == doctest::Approx(error / queries));
  CHECK(audit.mean_mass() < .9);

  attention_audit all;
  c.attend(exec, step, 1, q.data(), out.data(), {.keep = 1000, .path = attend_options::route::retrieve, .audit = &all});
  CHECK(all.mean_mass() == doctest::Approx(1).epsilon(1e-5));
  CHECK(all.worst_error < 1e-4);
  attention_audit none;
  c.attend(exec, step, 0, q.data(), out.data(), {.audit = &none});
  CHECK(none == attention_audit{});  // nothing to judge where nothing is retrieved
}

TEST_CASE("a negative scale is refused where keys are found by their signs, before threads begin; dense layers take it") {
  const host exec{.threads = 2, .parallel = test::std_threads()};
  cache_type c(exec, {},
               {.layers = 2, .kv_heads = 2, .query_heads = 2, .max_tokens = 100, .kinds = {layer_kind::dense(), layer_kind::retrieve()}});
  const sequence s = c.open(exec);
  feed(c, exec, s, tokens(1, 80));
  step step = c.begin(exec, {{s, 1}});
  append_all(c, exec, step, tokens(300, 1));
  const std::vector<float> q(2 * shape.key_dim, 1);
  std::vector<float> out(2 * shape.value_dim);
  c.attend(exec, step, 0, q.data(), out.data(), {.scale = -1});
  CHECK_THROWS_AS(c.attend(exec, step, 1, q.data(), out.data(), {.keep = 4, .path = attend_options::route::retrieve, .scale = -1}),
                  usage_error);
}

TEST_CASE("a budget by mass needs scores that are shares of the attention, and a mass that is one") {
  const host exec = test::one_thread();
  for (const auto by : {group_rule::kind::softmax_sum, group_rule::kind::mean, group_rule::kind::max}) {
    cache_type::spec_type how;
    how.reranker.rule.by = by;
    cache_type c(exec, how, {.layers = 1, .kv_heads = 2, .query_heads = 2, .max_tokens = 100, .kinds = {layer_kind::retrieve()}});
    const sequence s = c.open(exec);
    feed(c, exec, s, tokens(1, 80));
    step step = c.begin(exec, {{s, 1}});
    append_all(c, exec, step, tokens(300, 1));
    const std::vector<float> q(2 * shape.key_dim, 1);
    std::vector<float> out(2 * shape.value_dim);
    attend_options options{.keep = 4, .path = attend_options::route::retrieve, .budget = {.of = retrieve_budget::kind::mass}};
    const auto attend = [&] { c.attend(exec, step, 0, q.data(), out.data(), options); };
    if (by == group_rule::kind::softmax_sum) {
      attend();
      options.budget.mass = 1.5f;
    }
    CHECK_THROWS_AS(attend(), usage_error);
  }
}
