#pragma once
// Whole steps in one call, and what a sequence then looks like, bit for bit.

#include <support/checksum_index.hpp>
#include <support/token_rows.hpp>

#include <kvx/kvx.hpp>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace kvx::test {

inline host one_thread() { return {.threads = 1, .parallel = serial()}; }

/// n tokens, named first, first + 1, ...
inline std::vector<token> tokens(token first, std::int64_t n) {
  std::vector<token> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// Appends the rows of these tokens to every layer of an open step.
template <class Cache, class Exec>
void append_all(Cache& cache, const Exec& exec, step& step, std::span<const token> ids) {
  const geometry& g = cache.geometry();
  for (int layer = 0; layer < g.layers; ++layer) {
    const auto k = rows_of<float>(ids, part::key, layer, g.kv_heads, Cache::layout::shape.key_dim);
    const auto v = rows_of<float>(ids, part::value, layer, g.kv_heads, Cache::layout::shape.value_dim);
    cache.append(exec, step, layer, k.data(), v.data());
  }
}

/// One step that makes these tokens part of a sequence.
template <class Cache, class Exec>
void feed(Cache& cache, const Exec& exec, sequence s, std::span<const token> ids) {
  step step = cache.begin(exec, {{s, static_cast<std::int64_t>(ids.size())}});
  append_all(cache, exec, step, ids);
  cache.commit(exec, step);
}

/// Shows a cache the queries of a step's tokens, of every layer.
template <class Cache, class Exec>
void observe_all(Cache& cache, const Exec& exec, const step& step, std::span<const token> ids) {
  const geometry& g = cache.geometry();
  for (int layer = 0; layer < g.layers; ++layer)
    cache.observe(exec, step, layer, rows_of<float>(ids, part::query, layer, g.query_heads, Cache::layout::shape.key_dim).data());
}

/// Attention outputs and lse of a step's tokens in every layer, as bytes.
template <class Cache, class Exec>
std::vector<float> attend_all(Cache& cache, const Exec& exec, const step& step, std::span<const token> ids, attend_options how = {}) {
  const geometry& g = cache.geometry();
  std::vector<float> all;
  for (int layer = 0; layer < g.layers; ++layer) {
    const auto q = rows_of<float>(ids, part::query, layer, g.query_heads, Cache::layout::shape.key_dim);
    std::vector<float> out(ids.size() * static_cast<std::size_t>(g.query_heads * Cache::layout::shape.value_dim));
    std::vector<float> lse(ids.size() * static_cast<std::size_t>(g.query_heads));
    how.lse = lse.data();
    cache.attend(exec, step, layer, q.data(), out.data(), how);
    all.insert(all.end(), out.begin(), out.end());
    all.insert(all.end(), lse.begin(), lse.end());
  }
  return all;
}

/// Length, every row that the next query sees, and every column of the retrieval zone, in the order of the sequence.
template <class Cache>
std::vector<std::byte> snapshot(const Cache& cache, sequence s) {
  constexpr auto zones = Cache::zones;
  std::vector<std::byte> bytes;
  const auto add = [&](const void* from, std::size_t size) {
    const std::size_t at = bytes.size();
    bytes.resize(at + size);  // insert() has g++ 12 warn of bounds at -O3
    if (size > 0) std::memcpy(bytes.data() + at, from, size);  // a column that the policy does without lies nowhere
  };
  const std::int64_t n = cache.length(s);
  add(&n, sizeof(n));
  for (int layer = 0; layer < cache.geometry().layers; ++layer) {
    const auto rows = cache.view(layer);
    const auto pages = cache.pages(layer, s);
    const layer_kind kind = cache.geometry().kind(layer);
    const std::int64_t P = rows.page_tokens;
    for (std::int64_t t = 0; t < n; ++t) {
      if (kind.sees == layer_kind::attention::window && t >= kind.sink && t + kind.tokens <= n) continue;
      const std::int32_t page = pages[static_cast<std::size_t>(t / P)];
      for (int h = 0; h < rows.heads; ++h) {
        add(rows.key.at(page, h, t % P), static_cast<std::size_t>(rows.key_dim) * sizeof(*rows.key.data));
        add(rows.value.at(page, h, t % P), static_cast<std::size_t>(rows.value_dim) * sizeof(*rows.value.data));
      }
    }
    if (kind.sees != layer_kind::attention::retrieve) continue;
    for (int c = 0; c < static_cast<int>(Cache::index::columns(Cache::layout::shape).size()); ++c) {
      const auto size = static_cast<std::size_t>(Cache::index::columns(Cache::layout::shape)[static_cast<std::size_t>(c)].block_bytes);
      const column_array side = cache.column(layer, c);
      for (std::int64_t j = zones.sink / P; j < edge(zones, n, P) / P; ++j) {
        for (int h = 0; h < rows.heads; ++h) add(side.at(pages[static_cast<std::size_t>(j)], h), size);
      }
    }
  }
  return bytes;
}

/// What a caller can see of the pools.
inline std::vector<std::int64_t> counts(const cache_stats& s) {
  return {s.sequences,   s.tokens,           s.pages_total,   s.pages_used, s.pages_free,   s.pages_shared,
          s.sink_tokens, s.retrieval_tokens, s.recent_tokens, s.row_bytes,  s.column_bytes, s.far_bytes};
}

}  // namespace kvx::test
