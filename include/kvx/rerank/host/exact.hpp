#pragma once
// True logits of candidates on the host.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/rerank/exact.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvx {

namespace host_exact {

constexpr float finite_or_nan(float logit) { return logit - logit == 0 ? logit : quiet_nan; }

/// Candidates of one task: a multiple of the kernels' blocks.
inline constexpr std::int64_t task_tokens = 512;

constexpr std::int64_t pitch(std::int64_t dim) { return round_up(dim, simd::padding); }

}  // namespace host_exact

/// Bytes of scratch that `rerank` needs for a group of G heads of D dims.
constexpr std::int64_t rerank_scratch(const host&, const exact&, int key_dim, std::int64_t heads) {
  return 64 + heads * host_exact::pitch(key_dim) * static_cast<std::int64_t>(sizeof(float));
}

/// Logits of candidates for every head of a group, from their rows. One that is not finite becomes NaN: such a key is never found.
///
/// shapes      ids (C), ascending; logits (G, C), rows dense; queries.plain (G, D)
/// units       nats, scaled; a soft cap would not change their order and is left to attention
/// cost        reads the K rows of the candidates
/// exactness   float sums; instruction sets differ by rounding
/// errors      usage_error for shapes that do not fit; ids are not checked
template <element E>
void rerank(const host& exec, const exact& policy, const key_sketch&, const head_view<E>& from, const group_queries& queries,
            std::span<const std::int32_t> ids, tensor_view<float, 2> logits, std::span<std::byte> scratch,
            call_site where = call_site::here()) {
  const std::int64_t G = queries.plain.extents[0], D = from.rows.key_dim, C = static_cast<std::int64_t>(ids.size());
  require_range("rerank: key_dim", D, 1, 576, where);
  require_range("rerank: heads of the group", G, 1, most_rerank_heads, where);
  require_shape("rerank: plain queries", queries.plain, {G, D}, where);
  require_shape("rerank: logits", logits, {G, C}, where);
  require(logits.strides[1] == 1 || C <= 1, "rerank: rows of logits must be dense", where);
  require(static_cast<std::int64_t>(scratch.size()) >= rerank_scratch(exec, policy, static_cast<int>(D), G),
          "rerank: scratch is smaller than rerank_scratch", where);

  const simd::kernel_table& kernels = simd::kernels();
  const std::int64_t pitch = host_exact::pitch(D);
  const float scale = queries.scale != 0 ? queries.scale : 1 / std::sqrt(static_cast<float>(D));
  void* start = scratch.data();
  std::size_t space = scratch.size();
  auto* const q = static_cast<float*>(std::align(64, 1, start, space));                             // (G, pitch)
  std::fill_n(q, G * pitch, 0.0f);
  for (std::int64_t g = 0; g < G; ++g) {
    for (std::int64_t d = 0; d < D; ++d)
      q[g * pitch + simd::lane_position<E>(static_cast<int>(d), kernels.lanes)] = *queries.plain.at(g, d) * scale;
  }

  const int page_shift = std::countr_zero(static_cast<unsigned>(from.rows.page_tokens));
  for_each_task(exec, ceil_div(C, host_exact::task_tokens), [&](std::int64_t task) {
    const std::int64_t last = std::min(C, (task + 1) * host_exact::task_tokens);
    const E* addresses[2][simd::block_tokens];
    const E **now = addresses[0], **next = addresses[1];
    float scores[most_rerank_heads * simd::block_tokens];                                            // (G, block_tokens)
    const auto find = [&](std::int64_t begin, const E** rows) {
      const auto n = static_cast<int>(std::clamp<std::int64_t>(last - begin, 0, simd::block_tokens));
      for (int t = 0; t < n; ++t) {
        const std::int64_t id = ids[static_cast<std::size_t>(begin + t)];
        rows[t] = from.rows.key.at(from.pages[id >> page_shift], from.head, id & (from.rows.page_tokens - 1));
      }
      return n;
    };
    std::int64_t begin = task * host_exact::task_tokens;
    for (int n = find(begin, now); n > 0;) {
      const int ahead = find(begin + n, next);
      kernels.rows<E>().dots(q, pitch, static_cast<int>(G), now, n, next, ahead, static_cast<int>(D), scores);
      for (std::int64_t g = 0; g < G; ++g)
        std::transform(scores + g * simd::block_tokens, scores + g * simd::block_tokens + n, logits.at(g, begin),
                       host_exact::finite_or_nan);
      begin += n;
      n = ahead;
      std::swap(now, next);
    }
  });
}

}  // namespace kvx
