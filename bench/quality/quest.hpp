#pragma once
// Quest's selection, which kvx does not offer: pages in the order of time, ranked by bounds of their keys.

#include "method.hpp"

#include <any_cache.hpp>

#include <kvx/attend/host/head_attention.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/kvx.hpp>
#include <kvx/layout/contiguous.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace quality {

/// One sequence whose layers behind the dense ones attend to sinks, recent rows and the 12 pages of 16 whose bound is highest.
///
/// what        bound of a page for a query: sum over channels of the larger of q_d min_d and q_d max_d over the page's keys; the heads of a
///             group share their pages by the softmax sum
/// source      Quest (Tang et al. 2024), whose heads choose each for itself; zones as in kvx::ice_cache
class quest_cache final : public decode_loop::any_cache {
 public:
  static constexpr kvx::page_shape page{.tokens = 16, .key_dim = head_dim, .value_dim = head_dim};
  static constexpr kvx::zones zones{.sink = 32, .local = 32, .unit = 256};
  static constexpr std::int64_t pages_kept = 12;

  quest_cache(const kvx::host& exec, kvx::geometry geometry)
      : exec_(exec), geometry_(std::move(geometry)), cache_(exec, {}, geometry_), sequence_(cache_.open(exec)) {
    bounds_.resize(static_cast<std::size_t>(geometry_.layers * geometry_.kv_heads));
  }

  void begin(std::int64_t tokens) override {
    before_ = cache_.length(sequence_);
    step_.emplace(cache_.begin(exec_, {{sequence_, tokens}}));
  }
  void append(int layer, const float* k, const float* v) override { cache_.append(exec_, *step_, layer, k, v); }
  void observe(int, const float*) override {}
  void attend(int layer, const float* q, float* out, float* lse, kvx::attention_audit*) override {
    const bool is_short = before_ + 1 < kvx::dense_below(zones, pages_kept * page.tokens);
    if (step_->tokens() > 1 || is_short || geometry_.kind(layer).sees != kvx::layer_kind::attention::retrieve) {
      cache_.attend(exec_, *step_, layer, q, out, {.lse = lse});
      return;
    }
    const kvx::tensor_view<const float, 3> queries(q, 1, geometry_.query_heads, head_dim);
    const kvx::tensor_view<float, 3> result(out, 1, geometry_.query_heads, head_dim);
    for (int head = 0; head < geometry_.kv_heads; ++head) attend_head(layer, head, queries, result);
  }
  void commit() override { cache_.commit(exec_, *step_); }

  std::int64_t length() const override { return cache_.length(sequence_); }
  void clear() override {
    step_.reset();
    cache_.close(exec_, sequence_);
    sequence_ = cache_.open(exec_);
    for (auto& of : bounds_) of.clear();
  }
  kvx::cache_stats stats() const override { return cache_.stats(); }

 private:
  using layout = kvx::contiguous<kvx::bf16, page>;  // one slab: page j of the sequence is page j of the layer
  using rows = kvx::row_view<const kvx::bf16>;

  void attend_head(int layer, int head, const kvx::tensor_view<const float, 3>& q, const kvx::tensor_view<float, 3>& out) {
    const std::int64_t G = geometry_.query_heads / geometry_.kv_heads;
    const rows view = cache_.view(layer);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(kvx::ceil_div(before_ + 1, std::int64_t{page.tokens})));
    std::iota(ids.begin(), ids.end(), 0);
    const kvx::batch_item item{ids.data(), before_ + 1, 1, 0};
    kvx::scratch_parts size;
    kvx::head_attention_parts(size, page, G);
    const std::int64_t stage = kvx::attend_rows_scratch(exec_, view, G, before_ + 1);
    std::vector<std::byte> memory(static_cast<std::size_t>(size.used + stage + 64));
    kvx::scratch_parts parts{memory.data()};
    const kvx::head_attention_parts at(parts, page, G);
    kvx::head_attention<kvx::bf16> attention(view, item, zones, 0, head, G, {}, at,
                                             std::span(memory).subspan(static_cast<std::size_t>(parts.used)));
    attention.load(q);
    attention.residents();
    attention.take(chosen(layer, head, view, attention));
    attention.write(out, kvx::tensor_view<float, 2>());
  }

  /// Tokens of the best pages, ascending.
  std::vector<std::int32_t> chosen(int layer, int head, const rows& view, const kvx::head_attention<kvx::bf16>& attention) {
    constexpr std::int64_t P = page.tokens, D = head_dim;
    const std::int64_t first = attention.zone.begin / P, count = attention.zone.end / P - first, G = attention.queries().extents[0];
    if (attention.zone.begin >= attention.zone.end) return {};
    std::vector<float>& bounds = bounds_[static_cast<std::size_t>(layer * geometry_.kv_heads + head)];  // (pages, 2, D): min, max
    for (std::int64_t j = std::ssize(bounds) / (2 * D); j < first + count; ++j) {
      bounds.insert(bounds.end(), D, kvx::infinity);
      bounds.insert(bounds.end(), D, -kvx::infinity);
      float* const low = bounds.data() + j * 2 * D;
      for (std::int64_t t = 0; t < P; ++t) {
        for (std::int64_t d = 0; d < D; ++d) {
          const float x = kvx::to_float(view.key.at(j, head, t)[d]);
          low[d] = std::min(low[d], x);
          low[D + d] = std::max(low[D + d], x);
        }
      }
    }
    std::vector<float> logits(static_cast<std::size_t>(G * count)), scores(static_cast<std::size_t>(count));
    for (std::int64_t g = 0; g < G; ++g) {
      const float* const q = attention.queries().at(g, 0);
      for (std::int64_t j = 0; j < count; ++j) {
        const float* const low = bounds.data() + (first + j) * 2 * D;
        float sum = 0;
        for (std::int64_t d = 0; d < D; ++d) sum += std::max(q[d] * low[d], q[d] * low[D + d]);
        logits[static_cast<std::size_t>(g * count + j)] = sum * attention.scale();
      }
    }
    std::vector<std::byte> scratch(static_cast<std::size_t>(kvx::group_scores_scratch(exec_, {}, G, count)));
    kvx::group_scores(exec_, {}, kvx::tensor_view<const float, 2>(logits.data(), G, count), attention.lse(), scores, scratch);
    std::vector<std::int32_t> best(scores.size()), tokens;
    best.resize(static_cast<std::size_t>(kvx::top_k<std::int32_t>(exec_, scores, pages_kept, best).taken));
    for (const std::int32_t j : best) {
      for (std::int64_t t = 0; t < P; ++t) tokens.push_back(static_cast<std::int32_t>((first + j) * P + t));
    }
    return tokens;
  }

  kvx::host exec_;
  kvx::geometry geometry_;
  kvx::cache<kvx::host, kvx::spec<layout>> cache_;
  kvx::sequence sequence_;
  std::optional<kvx::step> step_;
  std::int64_t before_ = 0;
  std::vector<std::vector<float>> bounds_;  // (layers, KV heads)
};

}  // namespace quality
