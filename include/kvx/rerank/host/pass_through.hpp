#pragma once
// No reranking, on the host.

#include <kvx/backend/host.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

constexpr std::int64_t rerank_scratch(const host&, const pass_through&, int, std::int64_t) { return 0; }

/// Logit 0 for every candidate and head.   logits (G, C)
template <element E>
void rerank(const host&, const pass_through&, const key_sketch&, const head_view<E>&, const group_queries&, std::span<const std::int32_t>,
            tensor_view<float, 2> logits, std::span<std::byte>, call_site = call_site::here()) {
  for (std::int64_t g = 0; g < logits.extents[0]; ++g) {
    for (std::int64_t t = 0; t < logits.extents[1]; ++t) *logits.at(g, t) = 0;
  }
}

}  // namespace kvx
