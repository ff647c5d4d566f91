#pragma once
// What calibration sees of a forward pass: rows of K and V for the calibrator, queries and attention for the sensitivity.

#include "forward.hpp"

#include <kvx/calibrate/calibrator.hpp>
#include <kvx/calibrate/sensitivity.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decode_loop {

/// The rotary embedding of the model, as kvx names it.
inline kvx::rope rope_of(const model_shape& s) {
  kvx::rope r;
  r.pairs = s.turned_pairs();
  r.base = s.rope_base;
  return r;
}
inline kvx::calibration_shape rows_of(const model_shape& s) {
  const auto dim = static_cast<std::int32_t>(s.head_dim);
  return {static_cast<std::int32_t>(s.layers), static_cast<std::int32_t>(s.kv_heads), dim, dim};
}
inline kvx::attention_shape attention_of(const model_shape& s) {
  const auto dim = static_cast<int>(s.head_dim);
  return {static_cast<int>(s.layers), static_cast<int>(s.query_heads), static_cast<int>(s.kv_heads), dim, dim, s.turned_pairs()};
}

/// Hands the output projections of a model to a sensitivity: once, before any passage.
inline void observe_projections(kvx::sensitivity& s, const model& weights) {
  for (std::size_t l = 0; l < weights.layers.size(); ++l) s.projection(static_cast<int>(l), weights.layers[l].output);
}

/// Runs a passage and hands on what it shows.
///
/// what        K before RoPE, V and embeddings of every token to the calibrators, chunk by chunk; where queries are looked at, the residual
///             stream after each layer, and queries of some positions with all keys and values before them, to the sensitivity
/// cost        a forward pass; memory for K and V of one passage in floats
class passage_observer {
 public:
  /// queries   positions a passage whose queries are looked at, evenly in [first_query, end); 0: of none
  passage_observer(forward_pass& pass, std::span<kvx::calibrator> rows, kvx::sensitivity& attention, std::size_t queries = 8,
                   std::size_t first_query = 256)
      : pass_(pass), rows_(rows), attention_(attention), queries_(queries), first_query_(first_query) {}

  void run(const kvx::host& exec, any_cache& cache, std::span<const token_id> ids, const kvx::coded_rows& coded) {
    const model_shape& s = pass_.weights().shape;
    start(ids.size());
    std::size_t done = 0;
    // Sinks carry a residual hundreds of times larger than other tokens in many models, and are never coded.
    const auto residual = [&](std::size_t layer) {
      if (queries_ == 0) return;
      const std::size_t sinks = done < static_cast<std::size_t>(coded.sinks) ? static_cast<std::size_t>(coded.sinks) - done : 0;
      const auto rows = pass_.residual();
      attention_.residual(static_cast<int>(layer), rows.subspan(std::min(rows.size(), sinks * s.embedding)),
                          static_cast<std::int64_t>(s.embedding));
    };
    const auto watch = [&](std::size_t layer, const layer_rows& r) {
      if (layer > 0) residual(layer - 1);
      take(layer, done, r);
    };
    const auto finish_chunk = [&](std::size_t end) {
      residual(s.layers - 1);
      hand_on(exec, ids, done, end);
      done = end;
    };
    run_prompt(pass_, cache, ids, {.scored = 0, .copies = {}, .watch = watch, .keep_k0 = true, .progress = finish_chunk});
    for (std::size_t l = 0; l < s.layers && queries_ > 0; ++l) {
      const kept_layer& k = kept_[l];
      attention_.add(exec, static_cast<int>(l), {k.queries, positions_, k.keys, k.values}, coded);
    }
  }

 private:
  struct kept_layer {
    std::vector<float> keys, values;  // (T, H, D) after RoPE, (T, H, D)
    std::vector<float> queries;  // (positions, Q, D)
  };

  void start(std::size_t tokens) {
    const model_shape& s = pass_.weights().shape;
    kept_.assign(s.layers, {});
    const std::size_t features = s.layers * s.kv_heads * s.head_dim;
    k0_.resize(pass_.most_tokens() * features);
    v_.resize(k0_.size());
    positions_.clear();
    const std::size_t first = tokens > 2 * first_query_ ? first_query_ : tokens / 2;
    for (std::size_t i = 0; i < queries_ && first < tokens; ++i) {
      const std::size_t p = first + (2 * i + 1) * (tokens - first) / (2 * queries_);
      if (positions_.empty() || static_cast<std::size_t>(positions_.back()) < p) positions_.push_back(static_cast<std::int64_t>(p));
    }
  }

  void take(std::size_t layer, std::size_t first, const layer_rows& r) {
    const model_shape& s = pass_.weights().shape;
    const std::size_t row = s.kv_heads * s.head_dim, query = s.query_heads * s.head_dim, count = r.v.size() / row;
    for (std::size_t t = 0; t < count && !rows_.empty(); ++t) {
      std::copy_n(r.k0.data() + t * row, row, k0_.data() + (t * s.layers + layer) * row);
      std::copy_n(r.v.data() + t * row, row, v_.data() + (t * s.layers + layer) * row);
    }
    if (queries_ == 0) return;
    kept_layer& k = kept_[layer];
    k.keys.insert(k.keys.end(), r.k.begin(), r.k.end());
    k.values.insert(k.values.end(), r.v.begin(), r.v.end());
    for (const std::int64_t p : positions_) {
      const auto at = static_cast<std::size_t>(p);
      if (at < first || at >= first + count) continue;
      const auto q = r.q.subspan((at - first) * query, query);
      k.queries.insert(k.queries.end(), q.begin(), q.end());
    }
  }

  void hand_on(const kvx::host& exec, std::span<const token_id> ids, std::size_t first, std::size_t end) {
    if (rows_.empty()) return;
    const model_shape& s = pass_.weights().shape;
    const std::size_t features = s.layers * s.kv_heads * s.head_dim, width = s.embedding;
    const auto embedding = [&](std::size_t t) { return pass_.weights().embedding.data() + static_cast<std::size_t>(ids[t]) * width; };
    embeddings_.clear();
    for (std::size_t t = first; t < end; ++t) embeddings_.insert(embeddings_.end(), embedding(t), embedding(t) + width);
    kvx::passage_rows rows;
    rows.first_position = static_cast<std::int64_t>(first);
    rows.passage_tokens = static_cast<std::int64_t>(ids.size());
    rows.keys = std::span(k0_).first((end - first) * features);
    rows.values = std::span(v_).first((end - first) * features);
    rows.embeddings = embeddings_;
    if (first > 0) rows.previous = {embedding(first - 1), width};
    for (kvx::calibrator& c : rows_) c.add(exec, rows);
  }

  forward_pass& pass_;
  std::span<kvx::calibrator> rows_;
  kvx::sensitivity& attention_;
  std::size_t queries_, first_query_;
  std::vector<std::int64_t> positions_;
  std::vector<kept_layer> kept_;
  std::vector<float> k0_, v_;  // (chunk, L, H, D)
  std::vector<float> embeddings_;  // (chunk, E)
};

}  // namespace decode_loop
