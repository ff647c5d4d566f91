// Keys and queries of every kind through the whole cache: what is no number is never found, equal keys are taken in order, the rest is
 // right.

#include "../support/attended.hpp"
#include "../support/token_rows.hpp"

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr int kv_heads = 2, query_heads = 6, group = query_heads / kv_heads;
constexpr int dim = 64;
constexpr std::int64_t n = 1600, kept = 48;
constexpr float inf = infinity;

const host exec{.threads = 1};

template <class Spec>
struct text {
  cache<host, Spec> c{
      exec, {}, {.layers = 1, .kv_heads = kv_heads, .query_heads = query_heads, .max_tokens = 3000, .kinds = {layer_kind::retrieve()}}};
  sequence s = c.open(exec);
  std::mt19937 random{3};
  std::normal_distribution<float> normal;
  std::vector<float> k, v;  // (n, H, D)
  std::vector<float> q;     // (Q, D)

  text() {
    for (std::int64_t i = 0; i < n * kv_heads * dim; ++i) {
      k.push_back(normal(random));
      v.push_back(normal(random));
    }
    for (int i = 0; i < query_heads * dim; ++i) q.push_back(normal(random));
  }
  float* key(std::int64_t t, int head) { return k.data() + (t * kv_heads + head) * dim; }
  float* value(std::int64_t t, int head) { return v.data() + (t * kv_heads + head) * dim; }

  /// The first `count` tokens, their queries seen.
  void fill(std::int64_t count = n) {
    std::vector<float> queries(static_cast<std::size_t>(count * query_heads * dim));
    for (float& x : queries) x = normal(random);
    step step = c.begin(exec, {{s, count}});
    c.append(exec, step, 0, k.data(), v.data());
    c.observe(exec, step, 0, queries.data());
    c.commit(exec, step);
  }

  struct result {
    std::vector<float> out;  // (Q, D)
    std::vector<float> lse;  // (Q)
  };

  /// Attention of one more token, of key and value zero.
  result attend(attend_options o) {
    result r{std::vector<float>(query_heads * dim), std::vector<float>(query_heads)};
    step step = c.begin(exec, {{s, 1}});
    const std::vector<float> zeros(kv_heads * dim);
    c.append(exec, step, 0, zeros.data(), zeros.data());
    o.lse = r.lse.data();
    c.attend(exec, step, 0, q.data(), r.out.data(), o);
    return r;
  }

  std::int64_t end() const { return edge(Spec::zones, c.length(s), Spec::layout_type::shape.tokens); }
  std::int64_t residents() const { return Spec::zones.sink + c.length(s) + 1 - end(); }
};

constexpr attend_options retrieving{.keep = kept, .path = attend_options::route::retrieve};
constexpr attend_options all{.path = attend_options::route::dense};

using ours = paris_kv<bf16, dim>;
using faithful = paris_kv_faithful<bf16, dim>;
/// Sixteen coordinates a subspace, one weight a key, as many bits as there are.
using coarse = spec<paged<bf16, page_shape{.tokens = 16, .key_dim = dim, .value_dim = dim}, zones{.sink = 4, .local = 64}>,
                    sign_buckets<key_sketch{.subspace = 16, .weights = key_sketch::weighting::key, .balance = 256}>, rsq_ip<4>>;

/// Numbers alone, of heads [first, last).
bool finite(const std::vector<float>& out, int first = 0, int last = query_heads) {
  const std::ptrdiff_t width = std::ssize(out) / query_heads;
  return std::all_of(out.begin() + first * width, out.begin() + last * width, [](float x) { return std::isfinite(x); });
}

/// The heads of KV head 1 give the same bits.
template <class Result>
bool second_head_equal(const Result& a, const Result& b) {
  return std::equal(a.out.begin() + group * dim, a.out.end(), b.out.begin() + group * dim) &&
         std::equal(a.lse.begin() + group, a.lse.end(), b.lse.begin() + group);
}

}  // namespace

TEST_CASE_TEMPLATE("keys of NaN and infinity in the zone are never found, whatever the budget", Spec, ours, faithful, coarse) {
  text<Spec> t;
  std::vector<std::int64_t> bad;
  for (std::int64_t i = 0; i < 40; ++i) bad.push_back(70 + 31 * i);
  for (std::size_t i = 0; i < bad.size(); ++i) {
    t.key(bad[i], 0)[i % dim] = i % 3 == 0 ? quiet_nan : i % 3 == 1 ? inf : -inf;
    std::fill_n(t.value(bad[i], 0), dim, 1e30f);  // it would show
  }
  t.fill();
  for (const std::int64_t keep : {std::int64_t{1}, kept, n}) {
    CAPTURE(keep);
    attend_options o = retrieving;
    o.keep = keep;
    const auto r = t.attend(o);
    CHECK(finite(r.out));
    CHECK(finite(r.lse));
    CHECK(std::all_of(r.out.begin(), r.out.end(), [](float x) { return std::fabs(x) < 100; }));
    const auto counts = attended(t.c, exec, t.s, 0, t.q, o,
                                 [&](int h, std::int64_t at) { return h == 0 && std::find(bad.begin(), bad.end(), at) != bad.end(); });
    const std::int64_t zone = t.end() - Spec::zones.sink;
    for (int h = 0; h < query_heads; ++h) {
      CHECK(counts[static_cast<std::size_t>(h)].marked == 0);
      CHECK(counts[static_cast<std::size_t>(h)].all == t.residents() + std::min(keep, h < group ? zone - std::ssize(bad) : zone));
    }
  }
  CHECK_FALSE(finite(t.attend(all).out, 0, group));  // and it is really there
}

TEST_CASE("a NaN among keys that are always attended to shows in its own KV head, as in dense attention") {
  for (const std::int64_t at : {std::int64_t{2}, n - 5}) {
    text<ours> good, bad;
    bad.key(at, 0)[7] = quiet_nan;
    good.fill();
    bad.fill();
    const auto r = bad.attend(retrieving);
    for (int h = 0; h < group; ++h) CHECK(std::isnan(r.lse[static_cast<std::size_t>(h)]));
    CHECK(second_head_equal(r, good.attend(retrieving)));
  }
}

TEST_CASE_TEMPLATE("queries of NaN and infinity: the other KV head does not change, other heads of the group stay numbers", Spec, ours,
                   faithful, coarse) {
  text<Spec> t;
  t.fill();
  const auto expected = t.attend(retrieving);
  const std::vector<float> q = t.q;
  for (const float x : {quiet_nan, inf, -inf, 1e30f}) {
    CAPTURE(x);
    for (const int heads : {1, group}) {
      t.q = q;
      for (int h = 0; h < heads; ++h) t.q[static_cast<std::size_t>(h * dim + 3)] = x;
      const auto r = t.attend(retrieving);
      CHECK(second_head_equal(r, expected));
      CHECK(finite(r.out, heads));
      if (std::isnan(x)) CHECK(std::isnan(r.lse[0]));
    }
  }
  t.q.assign(t.q.size(), 0);
  const auto r = t.attend(retrieving);  // all keys tie
  for (int h = 0; h < query_heads; ++h)
    CHECK(r.lse[static_cast<std::size_t>(h)] == doctest::Approx(std::log(static_cast<double>(t.residents() + kept))));
}

TEST_CASE_TEMPLATE("keys of zero, equal keys, keys of one constant channel: ties go to the first tokens", Spec, ours, faithful, coarse) {
  const std::function<float(int)> kinds[] = {[](int) { return 0.0f; }, [](int d) { return .25f * static_cast<float>(d % 7 - 3); },
                                             [](int d) { return d == 11 ? 900.0f : 0.0f; }};
  for (const auto& component : kinds) {
    text<Spec> t;
    for (std::int64_t i = 0; i < n * kv_heads; ++i) {
      for (int d = 0; d < dim; ++d) t.k[static_cast<std::size_t>(i * dim + d)] = component(d);
    }
    t.fill();
    CHECK(finite(t.attend(retrieving).out));
    const auto counts = attended(t.c, exec, t.s, 0, t.q, retrieving,
                                 [&](int, std::int64_t at) { return at >= Spec::zones.sink && at < Spec::zones.sink + kept; });
    for (const attended_count& c : counts) {
      CHECK(c.all == t.residents() + kept);
      CHECK(c.marked == kept);
    }
  }
}

TEST_CASE_TEMPLATE("one token, a few, and budgets larger than the zone: dense attention", Spec, ours, faithful, coarse) {
  for (const std::int64_t length : {1, 2, 5, 64, 320, 1281, 1600}) {
    CAPTURE(length);
    text<Spec> t;
    t.fill(length);
    for (const std::int64_t keep : {length, std::int64_t{1} << 62}) {
      attend_options o = retrieving;
      o.keep = keep;
      const auto r = t.attend(o), dense = t.attend(all);
      for (std::size_t i = 0; i < r.lse.size(); ++i) CHECK(r.lse[i] == doctest::Approx(dense.lse[i]).epsilon(1e-5));
      double worst = 0;
      for (std::size_t i = 0; i < r.out.size(); ++i)
        worst = std::max(worst, std::fabs(static_cast<double>(r.out[i]) - static_cast<double>(dense.out[i])));
      CHECK(worst < 2e-5);
    }
  }
}

TEST_CASE_TEMPLATE("fewer candidates than are kept: all of them; no budget: residents alone", Spec, ours, faithful, coarse) {
  text<Spec> t;
  t.fill();
  const auto count = [&](std::int64_t keep, search_breadth breadth) {
    attend_options o = retrieving;
    o.keep = keep;
    o.breadth = breadth;
    return attended(t.c, exec, t.s, 0, t.q, o, [](int, std::int64_t) { return false; })[0].all - t.residents();
  };
  const std::int64_t zone = t.end() - Spec::zones.sink;
  CHECK(count(kept, {.fraction = 10.0 / static_cast<double>(zone), .per_kept = 0}) == 10);
  CHECK(count(kept, {.fraction = 1e-9, .per_kept = 0}) == 1);
  CHECK(count(0, {}) == 0);
  CHECK(count(zone - 1, {.fraction = 1}) == zone - 1);
  CHECK(count(kept, {.fraction = 2}) == kept);
}

TEST_CASE("a bias of norm 700 on every key hides none of them: keys are relative to their page") {
  text<paris_kv<float, dim>> with, without;
  std::vector<float> bias;
  for (int i = 0; i < kv_heads * dim; ++i) bias.push_back(mix(static_cast<std::uint64_t>(i % dim)) % 2 == 0 ? 87.5f : -87.5f);
  for (std::int64_t i = 0; i < n * kv_heads * dim; ++i) {
    float& x = without.k[static_cast<std::size_t>(i)];
    x *= 3;
    with.k[static_cast<std::size_t>(i)] = x + bias[static_cast<std::size_t>(i % dim)];
  }
  for (int h = 0; h < query_heads; ++h) std::copy_n(without.q.begin() + h / group * group * dim, dim, with.q.begin() + h * dim);
  without.q = with.q;
  with.fill();
  without.fill();
  const auto found = [&](auto& t, const std::vector<float>& new_key) {
    std::int64_t sum = 0;
    for (int h = 0; h < query_heads; ++h) {
      std::vector<std::pair<float, std::int64_t>> order;  // the bias moves all logits of a head alike
      const float* const q = t.q.data() + h * dim;
      for (std::int64_t at = 4; at < t.end(); ++at)
        order.emplace_back(-std::inner_product(q, q + dim, without.key(at, h / group), 0.0f), at);
      std::nth_element(order.begin(), order.begin() + kept, order.end());
      const auto best = [&](int, std::int64_t at) {
        return std::any_of(order.begin(), order.begin() + kept, [at](const auto& o) { return o.second == at; });
      };
      sum += attended(t.c, exec, t.s, 0, t.q, retrieving, best, new_key)[static_cast<std::size_t>(h)].marked;
    }
    return static_cast<double>(sum) / static_cast<double>(query_heads * kept);
  };
  const double biased = found(with, bias), unbiased = found(without, {});
  MESSAGE("share of each head's best found: with the bias ", biased, ", without ", unbiased);
  CHECK(biased > unbiased - .03);
}
