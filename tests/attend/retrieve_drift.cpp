// Nothing that a cache learned goes stale: recall stays flat while ten thousand tokens of a drifting distribution are appended.

#include "../support/attended.hpp"
#include "../support/drifting_keys.hpp"

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr int dim = 64;
constexpr std::int64_t kept = 128;

const host exec{.threads = 1};

/// One head whose tokens come one by one, and what was appended.
template <class Spec>
struct stream {
  cache<host, Spec> c{exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = 1, .max_tokens = 20000, .kinds = {layer_kind::retrieve()}}};
  sequence s = c.open(exec);
  drifting_keys source{dim, 5};
  std::mt19937 random{7};
  std::vector<std::vector<float>> keys;

  /// The next n tokens, in steps of `chunk`; their queries are seen.
  void append(std::int64_t n, std::int64_t chunk) {
    for (std::int64_t done = 0; done < n; done += chunk) {
      std::vector<float> k, v(static_cast<std::size_t>(chunk * dim)), q;
      for (std::int64_t t = 0; t < chunk; ++t) {
        keys.push_back(source.next());
        k.insert(k.end(), keys.back().begin(), keys.back().end());
        const auto query = source.query(keys[random() % keys.size()]);
        q.insert(q.end(), query.begin(), query.end());
      }
      step step = c.begin(exec, {{s, chunk}});
      c.append(exec, step, 0, k.data(), v.data());
      c.observe(exec, step, 0, q.data());
      c.commit(exec, step);
    }
  }

  /// Share of the exact best 128 tokens of the zone that are attended to, mean over queries near keys of any age.
  double recall() {
    constexpr int queries = 48;
    const std::int64_t end = edge(Spec::zones, c.length(s), 64);
    double found = 0;
    for (int i = 0; i < queries; ++i) {
      const auto q = source.query(keys[random() % keys.size()]);
      std::vector<std::pair<float, std::int64_t>> order;
      for (std::int64_t t = Spec::zones.sink; t < end; ++t) {
        const auto& key = keys[static_cast<std::size_t>(t)];
        order.emplace_back(-std::inner_product(q.begin(), q.end(), key.begin(), 0.0f), t);
      }
      std::nth_element(order.begin(), order.begin() + kept, order.end());
      std::vector<bool> best(keys.size() + 1);
      for (std::int64_t j = 0; j < kept; ++j) best[static_cast<std::size_t>(order[static_cast<std::size_t>(j)].second)] = true;
      const auto counts =
          attended(c, exec, s, 0, q, {.keep = kept}, [&](int, std::int64_t t) { return best[static_cast<std::size_t>(t)]; });
      CHECK(counts[0].all == Spec::zones.sink + kept + c.length(s) + 1 - end);
      found += static_cast<double>(counts[0].marked) / kept;
    }
    return found / queries;
  }
};

}  // namespace

TEST_CASE("recall of the exact best 128 every 1,000 of 10,000 appended tokens: flat within .02") {
  stream<paris_kv<bf16, dim>> text;
  text.append(6144, 512);
  std::vector<double> recalls = {text.recall()};
  for (int part = 0; part < 10; ++part) {
    text.append(1000, 1);
    recalls.push_back(text.recall());
  }
  CHECK(text.c.stats().balanced_sequences == 1);
  const auto [lowest, highest] = std::minmax_element(recalls.begin(), recalls.end());
  for (const double r : recalls) MESSAGE(r);
  CHECK(*highest - *lowest <= .02);
  CHECK(*lowest >= .9);
}
