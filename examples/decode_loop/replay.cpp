#include "replay.hpp"

#include <algorithm>
#include <cmath>

namespace decode_loop {
namespace {

/// One layer of a trace, as floats.
struct recorded_layer {
  std::vector<float> k, v;                                              // (T, H, D)
  std::vector<float> q;                                                 // (Tq, Q, D), of the last Tq tokens
};

/// Exact attention of every query: the definition, in double.
struct exact_attention {
  std::vector<double> out;                                              // (Tq, Q, D)
  std::vector<double> lse;                                              // (Tq, Q)
};

exact_attention attend_exactly(const trace_shape& s, const recorded_layer& rows) {
  const std::size_t dim = s.key_dim;
  exact_attention result{std::vector<double>(rows.q.size()), std::vector<double>(s.queries * s.query_heads)};
  std::vector<double> score(s.tokens);
  for (std::size_t i = 0; i < s.queries * s.query_heads; ++i) {
    const std::size_t seen = s.tokens - s.queries + i / s.query_heads + 1;
    const std::size_t head = i % s.query_heads * s.kv_heads / s.query_heads;
    const float* q = rows.q.data() + i * dim;                           // q (D)
    for (std::size_t t = 0; t < seen; ++t) {
      const float* k = rows.k.data() + (t * s.kv_heads + head) * dim;   // k (D)
      double dot = 0;
      for (std::size_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
      score[t] = dot / std::sqrt(static_cast<double>(dim));
    }
    const double highest = *std::max_element(score.begin(), score.begin() + static_cast<std::ptrdiff_t>(seen));
    double sum = 0;
    double* out = result.out.data() + i * dim;                          // out (D)
    for (std::size_t t = 0; t < seen; ++t) {
      const double weight = std::exp(score[t] - highest);
      const float* v = rows.v.data() + (t * s.kv_heads + head) * dim;   // v (D)
      for (std::size_t d = 0; d < dim; ++d) out[d] += weight * static_cast<double>(v[d]);
      sum += weight;
    }
    for (std::size_t d = 0; d < dim; ++d) out[d] /= sum;
    result.lse[i] = highest + std::log(sum);
  }
  return result;
}

/// Means over all queries and heads.
struct deviation {
  double error = 0, mass = 0;
};

deviation compare_step(const trace_shape& s, const exact_attention& exact, std::size_t query, std::span<const float> out,
                       std::span<const float> lse) {
  const std::size_t dim = s.value_dim;
  deviation sum;
  for (std::size_t h = 0; h < s.query_heads; ++h) {
    const std::size_t i = query * s.query_heads + h;
    double difference = 0, norm = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double expected = exact.out[i * dim + d];
      difference += std::pow(static_cast<double>(out[h * dim + d]) - expected, 2);
      norm += expected * expected;
    }
    sum.error += norm > 0 ? std::sqrt(difference / norm) : 0;
    sum.mass += std::exp(static_cast<double>(lse[h]) - exact.lse[i]);
  }
  return {sum.error / s.query_heads, sum.mass / s.query_heads};
}

replayed replay_layer(const trace_shape& s, const recorded_layer& rows, const exact_attention& exact, any_cache& cache) {
  const std::size_t width = std::size_t{s.kv_heads} * s.key_dim;
  const std::size_t before = s.tokens - s.queries;
  if (before > 0) {
    cache.begin(static_cast<std::int64_t>(before));
    cache.append(0, rows.k.data(), rows.v.data());
    cache.commit();
  }
  std::vector<float> out(std::size_t{s.query_heads} * s.value_dim);     // (Q, D)
  std::vector<float> lse(s.query_heads);                                // (Q)
  deviation mean;
  cache.take_attention_seconds();
  for (std::size_t i = 0; i < s.queries; ++i) {
    cache.begin(1);
    cache.append(0, rows.k.data() + (before + i) * width, rows.v.data() + (before + i) * width);
    cache.attend(0, rows.q.data() + i * out.size(), out.data(), lse.data());
    cache.commit();
    const deviation step = compare_step(s, exact, i, out, lse);
    mean.error += step.error / static_cast<double>(s.queries);
    mean.mass += step.mass / static_cast<double>(s.queries);
  }
  const double milliseconds = 1e3 * cache.take_attention_seconds() / static_cast<double>(std::max<std::uint64_t>(s.queries, 1));
  const double near_bytes = static_cast<double>(cache.stats().near_bytes()) / static_cast<double>(s.tokens);
  return {.cache = {}, .layer = 0, .error = mean.error, .mass = mean.mass, .milliseconds = milliseconds, .near_bytes = near_bytes};
}

}  // namespace

std::vector<replayed> replay_layers(trace_reader& trace, const kvx::host& exec, std::span<const cache_choice* const> choices,
                                    std::int64_t keep) {
  const trace_shape& s = trace.shape();
  if (s.key_dim != s.value_dim) throw file_error("the trace's keys and values differ in length, which the decode loop does not replay");
  std::vector<replayed> result;
  for (std::size_t layer = s.first_layer; layer < s.first_layer + s.layers; ++layer) {
    const recorded_layer rows{trace.read(layer, trace_part::k), trace.read(layer, trace_part::v), trace.read(layer, trace_part::q)};
    const exact_attention exact = attend_exactly(s, rows);
    for (const cache_choice* choice : choices) {
      const auto cache = choice->make(exec, {.layers = 1,
                                             .kv_heads = static_cast<int>(s.kv_heads),
                                             .query_heads = static_cast<int>(s.query_heads),
                                             .head_dim = static_cast<int>(s.key_dim),
                                             .max_tokens = static_cast<std::int64_t>(s.tokens),
                                             .max_step_tokens = static_cast<std::int64_t>(s.tokens),
                                             .keep = keep,
                                             .dense_layers = 0});
      replayed measured = replay_layer(s, rows, exact, *cache);
      measured.cache = choice->name;
      measured.layer = layer;
      result.push_back(std::move(measured));
    }
  }
  return result;
}

table replay(trace_reader& trace, const kvx::host& exec, std::span<const cache_choice* const> choices, std::int64_t keep) {
  table result{{"cache", "layer", "tokens", "output error", "mass", "attention ms", "near B/token"}, {}};
  for (const replayed& r : replay_layers(trace, exec, choices, keep)) {
    result.rows.push_back({r.cache, std::to_string(r.layer), std::to_string(trace.shape().tokens), number(r.error, 4), number(r.mass, 4),
                           number(r.milliseconds, 3), number(r.near_bytes, 0)});
  }
  return result;
}

}  // namespace decode_loop
