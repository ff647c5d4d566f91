#pragma once
// Which tokens a cache attends to, read from the outside: values become marks, and a tiny soft cap makes all weights equal.

#include <kvx/kvx.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvx::test {

/// What one query head attended to.
struct attended_count {
  std::int64_t all = 0;
  std::int64_t marked = 0;
};

/// Counts of the tokens that each query head attends to, one new token of key k among them.
///
/// what        component 0 of the value of token t of KV head h is 1 where marked(h, t), else 0. Attention scores are capped at 1e-6 nats,
/// the
///             ranking of keys is not: out is then marked / all, lse is log(all). The heads of a group are weighed against each other by
///             their residents' capped scores, which is not what they do without a cap: where it matters, give them one query
/// shapes      q (Q, D); k (H, D), empty for zeros; result (Q)
template <class Cache>
std::vector<attended_count> attended(Cache& cache, const host& exec, sequence s, int layer, const std::vector<float>& q, attend_options o,
                                     const std::function<bool(int head, std::int64_t t)>& marked, std::vector<float> k = {}) {
  using E = typename Cache::element_type;
  const geometry& g = cache.geometry();
  constexpr page_shape shape = Cache::layout::shape;
  step step = cache.begin(exec, {{s, 1}});
  k.resize(static_cast<std::size_t>(g.kv_heads * shape.key_dim));
  const std::vector<float> v(static_cast<std::size_t>(g.kv_heads * shape.value_dim));
  for (int l = 0; l < g.layers; ++l) cache.append(exec, step, l, k.data(), v.data());
  const auto rows = cache.view(layer);
  const auto pages = cache.pages(layer, s);
  for (std::int64_t t = 0; t < cache.length(s); ++t) {
    for (int h = 0; h < g.kv_heads; ++h) {
      // Tests may write through a reader's view; users may not.
      auto* const value = const_cast<E*>(rows.value.at(pages[static_cast<std::size_t>(t / shape.tokens)], h, t % shape.tokens));
      value[0] = round_to<E>(marked(h, t) ? 1.0f : 0.0f);
    }
  }
  std::vector<float> out(static_cast<std::size_t>(g.query_heads * shape.value_dim)), lse(static_cast<std::size_t>(g.query_heads));
  o.soft_cap = 1e-6f;
  o.lse = lse.data();
  cache.attend(exec, step, layer, q.data(), out.data(), o);
  std::vector<attended_count> counts;
  for (std::size_t head = 0; head < lse.size(); ++head) {
    const double all = std::exp(static_cast<double>(lse[head]));
    const double share = static_cast<double>(out[head * static_cast<std::size_t>(shape.value_dim)]);
    counts.push_back({std::llround(all), std::llround(all * share)});
  }
  return counts;  // the step is dropped
}

}  // namespace kvx::test
