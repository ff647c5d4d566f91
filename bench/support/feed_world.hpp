#pragma once
// Fills a sequence of a cache of one layer with the rows that speed is measured on.

#include "world.hpp"

#include <kvx/backend/host.hpp>
#include <kvx/core/element.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx::bench {

/// Adds tokens to an empty sequence until it has `tokens`, a multiple of 4,096, which one step may have.
///
/// Stream      of the rows of a head: row_stream or text_stream
template <class Stream = row_stream, class Cache, class Sequence>
void feed_world(Cache& cache, const host& exec, Sequence s, std::int64_t tokens) {
  using layout = typename Cache::layout;
  using E = typename layout::element_type;
  constexpr std::int64_t piece = 4096;
  constexpr int dim = layout::shape.key_dim;
  const int heads = cache.geometry().kv_heads;
  std::vector<Stream> streams;
  for (int h = 0; h < heads; ++h) streams.emplace_back(h, dim);
  std::vector<E> k(static_cast<std::size_t>(piece * heads * dim)), v(k.size());
  for (std::int64_t n = 0; n < tokens; n += piece) {
    for_each_task(exec, heads, [&](std::int64_t h) {
      for (std::int64_t t = 0; t < piece; ++t) {
        const auto at = (t * heads + h) * dim;
        streams[static_cast<std::size_t>(h)].next(k.data() + at, v.data() + at);
      }
    });
    auto step = cache.begin(exec, {{s, piece}});
    cache.append(exec, step, 0, k.data(), v.data());
    cache.commit(exec, step);
  }
}

}  // namespace kvx::bench
