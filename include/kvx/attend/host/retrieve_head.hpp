#pragma once
// One new token and KV head of a decode step on the host: residents, search, ranking, then attention to what was chosen.

#include <kvx/attend/dense.hpp>
#include <kvx/attend/host/head_attention.hpp>
#include <kvx/attend/host/rows.hpp>
#include <kvx/attend/host/tiers.hpp>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend/rows.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/host/sign_buckets.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/fullest_pages.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/sketch/value_code.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace kvx {

/// One layer as retrieval reads it.
///
/// sketch      how the keys are coded
/// columns_of  the batch under the page ids of the columns; with rows of the caller's those differ from the rows' own
/// balances    (entries) diagonals, those of this layer (H, D) begin at `balance_at`; null for none; empty: none at all
/// values      columns of the values, where the reranker has tiers
/// far         null where all rows are near
template <class E>
struct retrieve_layer {
  row_view<const E> rows;
  key_columns columns;
  key_sketch sketch;
  kvx::zones zones;
  std::span<const batch_item> rows_of;
  std::span<const batch_item> columns_of;
  std::span<const float* const> balances;
  std::int64_t balance_at = 0;
  value_columns values = {};
  far_layer<E>* far = nullptr;
};

namespace host_retrieve {

/// Scratch of one worker, for sequences of at most `tokens` tokens.
template <class Reranker>
struct parts {
  head_attention_parts head;
  float* rotated;         // (G, D)
  std::int32_t* ids;      // (C)
  std::int32_t* chosen;   // (C)
  float* logits;          // (G, C)
  float* scores;          // (C)
  float* page_dots;       // (pages, G)
  tier_pages pages;       // where the reranker has tiers
  std::byte* stage;       // of one stage after the other
  std::int64_t stage_bytes;

  parts(scratch_parts& s, const key_sketch& sketch, const bucket_scoring& by, const Reranker& reranker, page_shape page, std::int64_t G,
        std::int64_t tokens)
      : head(s, page, G) {
    rotated = s.take<float>(G * page.key_dim);
    ids = s.take<std::int32_t>(tokens);
    chosen = s.take<std::int32_t>(tokens);
    logits = s.take<float>(G * tokens);
    scores = s.take<float>(tokens);
    page_dots = s.take<float>((ceil_div(tokens, std::int64_t{page.tokens}) + 1) * G);
    const host serial{.threads = 1};
    const row_view<const float> shape{{}, {}, 1, page.tokens, page.key_dim, page.value_dim};
    stage_bytes = std::max({search_bytes(sketch, by, page, static_cast<int>(G), tokens), attend_rows_scratch(serial, shape, G, tokens),
                            group_scores_scratch(serial, reranker.rule, G, tokens)});
    if constexpr (!std::is_same_v<Reranker, pass_through>) {
      stage_bytes = std::max(stage_bytes, rerank_scratch(serial, reranker, page.key_dim, G));
    }
    if constexpr (any(tiers_of<Reranker>())) {
      stage_bytes = std::max(stage_bytes, attend_tiers_scratch(page, tiers_of<Reranker>().value_bits, G, tokens));
      pages.starts = s.take<std::int32_t>(tier_pages::entries(page, tokens));
      pages.left = s.take<std::int32_t>(tier_pages::entries(page, tokens));
    }
    stage = s.take<std::byte>(stage_bytes);
  }
};

}  // namespace host_retrieve

/// One new token and KV head. Trivial to make; its methods run in the order they stand here, on the caller's thread.
///
/// what        resident rows first, whose log-sum-exp ranks the others; candidates from the index; their logits from the reranker;
///             the best by the group rule; then the tiers below them, and their rows, into the same softmax
template <class E, class Reranker>
class retrieving_head {
 public:
  static constexpr tiers others = tiers_of<Reranker>();

  /// item, query   which entry of the batch, and which of its new tokens
  retrieving_head(const retrieve_layer<E>& layer, const bucket_scoring& by, const Reranker& reranker, page_shape page, std::size_t item,
                  std::int64_t query, std::int64_t head, std::int64_t heads, const retrieve_options& options,
                  const host_retrieve::parts<Reranker>& part)
      : layer_(layer),
        by_(by),
        reranker_(reranker),
        options_(options),
        part_(part),
        page_(page),
        item_(item),
        head_(head),
        heads_(heads),
        tiered_(tiers_used(others, options.others)),
        far_(layer.far, layer.rows_of[item].pages, head),
        attention_(layer.rows, layer.rows_of[item], layer.zones, query, head, heads, {options.scale, options.soft_cap}, part.head,
                   {part.stage, static_cast<std::size_t>(part.stage_bytes)}, far()) {}

  /// Attends to the residents and finds candidates; ranks them where `keep` leaves a choice.
  template <class T>
  void search(tensor_view<const T, 3> q) {
    const host serial{.threads = 1};
    const std::int64_t D = page_.key_dim;
    const float* balance = layer_.balances.empty() ? nullptr : layer_.balances[item_];
    if (balance != nullptr) balance += layer_.balance_at + head_ * D;
    attention_.load(q);
    for (std::int64_t g = 0; g < heads_; ++g) {
      const float* const whole = plain().at(g, 0);
      float* const rotated = part_.rotated + g * D;
      for (std::int64_t d = 0; d < D; ++d) rotated[d] = balance != nullptr ? whole[d] / balance[d] : whole[d];
      rotate(rotated, static_cast<std::size_t>(D), layer_.sketch.seed);
    }
    attention_.residents();

    const std::int64_t keep = options_.keep, zone_tokens = attention_.zone.end - attention_.zone.begin;
    const bool ranks = !std::is_same_v<Reranker, pass_through>;
    const std::int64_t wanted = ranks ? candidate_count(options_.breadth, by_, zone_tokens, keep) : std::min(keep, zone_tokens);
    if (wanted == 0 || (keep == 0 && !in_tiers())) return;
    found_ = search_buckets(serial, layer_.sketch, by_, zone(), {rotated(), plain(), attention_.lse().data(), attention_.scale()},
                            options_.breadth, wanted, ids_, stage(), part_.page_dots);
    if constexpr (any(others)) {
      if (tiered_.coded && tiered_.tail) {
        found_ = find_tails(zone(), {ids_, static_cast<std::size_t>(found_)}, part_.pages, positions_, wanted);
        std::swap(ids_, positions_);
      }
    }
    if constexpr (std::is_same_v<Reranker, fullest_pages>) {
      const std::span counts(part_.scores, static_cast<std::size_t>(zone().last_page() - zone().first_page()));
      found_ = tokens_of_fullest(serial, zone(), {ids_, static_cast<std::size_t>(found_)}, keep, counts,
                                 reinterpret_cast<std::int32_t*>(part_.stage), positions_);
      std::swap(ids_, positions_);
    } else if constexpr (!std::is_same_v<Reranker, pass_through>) {
      // A scan without norms proposes keys of NaN too: here they fall.
      ranked_ = found_ > keep || !layer_.sketch.norms || in_tiers() || options_.budget.of != retrieve_budget::kind::head;
      if (!ranked_) return;
      const bool reads_rows = std::is_same_v<Reranker, exact>;
      const head_view<E> from{layer_.rows, layer_.columns, reads_rows ? layer_.rows_of[item_].pages : zone().pages, head_, far()};
      rerank(serial, reranker_, layer_.sketch, from, {plain(), rotated(), attention_.scale(), page_dots(), zone().first_page()},
             {ids_, static_cast<std::size_t>(found_)}, logits(), stage());
      group_scores(serial, reranker_.rule, read_only(logits()), attention_.lse(), {part_.scores, static_cast<std::size_t>(found_)},
                   stage());
    }
  }

  /// Scores of the candidates; empty where all of them are kept without a ranking.
  std::span<const float> scores() const { return {part_.scores, static_cast<std::size_t>(ranked_ ? found_ : 0)}; }

  /// How many rows the best candidates are that, with the residents, hold `mass` of the attention by the estimates, mean of the heads; at
  /// most `keep`. Scores must be those of the softmax sum.
  std::int64_t rows_of_mass(float mass) const {
    auto* const sorted = reinterpret_cast<float*>(part_.stage);
    const std::span<const float> all = scores();
    const auto end = std::copy_if(all.begin(), all.end(), sorted, [](float x) { return x >= 0; });
    std::sort(sorted, end);
    const double spare = (1 - static_cast<double>(mass)) * static_cast<double>(heads_);
    double dropped = 0;
    std::int64_t left = end - sorted;
    for (const float* x = sorted; x != end && dropped + static_cast<double>(*x) <= spare; ++x, --left) dropped += static_cast<double>(*x);
    return std::min(left, options_.keep);
  }

  /// Attends to the best `keep` candidates and to the tiers below, and writes the result.
  template <class T>
  void attend(std::int64_t keep, tensor_view<T, 3> out, tensor_view<float, 2> lse) {
    const host serial{.threads = 1};
    std::span<const std::int32_t> chosen(ids_, static_cast<std::size_t>(found_));
    if (ranked_) {
      const std::span positions(positions_, static_cast<std::size_t>(found_));
      chosen = positions.first(static_cast<std::size_t>(top_k<std::int32_t>(serial, scores(), keep, positions).taken));
      if constexpr (any(others)) {
        if (in_tiers()) attend_below(chosen);
      }
      for (std::size_t i = 0; i < chosen.size(); ++i) positions_[i] = ids_[positions_[i]];
    }
    if (found_ > 0) attention_.take(chosen);
    attention_.write(out, lse);
  }

 private:
  bool in_tiers() const { return tiered_.any(); }
  far_head<E>* far() { return far_.any() ? &far_ : nullptr; }
  bucket_zone zone() const {
    return {page_, layer_.columns, head_, layer_.columns_of[item_].pages, attention_.zone.begin, attention_.zone.end};
  }
  std::span<softmax_state> states() const { return attention_.states(); }
  std::span<std::byte> stage() const { return {part_.stage, static_cast<std::size_t>(part_.stage_bytes)}; }
  const float* page_dots() const { return leaves_page_dots(layer_.sketch, by_) ? part_.page_dots : nullptr; }
  tensor_view<const float, 2> plain() const { return attention_.queries(); }
  tensor_view<const float, 2> rotated() const { return tensor_view<const float, 2>(part_.rotated, heads_, page_.key_dim); }
  tensor_view<float, 2> sums() const { return attention_.sums(); }
  tensor_view<float, 2> logits() const { return tensor_view<float, 2>(part_.logits, heads_, found_); }

  /// The tiers below the chosen rows, positions among the candidates.
  void attend_below(std::span<const std::int32_t> chosen) {
    tensor_view<float, 2> members = logits();  // (G, C) or (G, K)
    std::span<const std::int32_t> taken_out(ids_, static_cast<std::size_t>(found_));
    if (!tiered_.coded) {  // what is not chosen stays in the tail
      const auto count = static_cast<std::int64_t>(chosen.size());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t from = positions_[i];
        for (std::int64_t g = 0; g < heads_; ++g) *members.at(g, i) = *members.at(g, from);
        ids_[i] = ids_[from];
        positions_[i] = static_cast<std::int32_t>(i);
      }
      members.extents[1] = count;
      taken_out = taken_out.first(chosen.size());
    }
    if (!tiered_.coded || !tiered_.tail) find_tails(zone(), taken_out, part_.pages, nullptr);
    const tier_view of{.zone = zone(),
                       .pages = part_.pages,
                       .values = layer_.values,
                       .bits = others.value_bits,
                       .seed = layer_.sketch.seed,
                       .ids = taken_out,
                       .exact = chosen,
                       .plain = plain(),
                       .page_dots = page_dots(),
                       .scale = attention_.scale(),
                       .soft_cap = options_.soft_cap};
    attend_tiers<others.value_bits>(of, tiered_, members, states(), sums(), stage());
  }

  const retrieve_layer<E>& layer_;
  const bucket_scoring& by_;
  const Reranker& reranker_;
  const retrieve_options& options_;
  host_retrieve::parts<Reranker> part_;
  page_shape page_;
  std::size_t item_;
  std::int64_t head_, heads_;
  tier_options tiered_;
  far_head<E> far_;
  head_attention<E> attention_;
  std::int64_t found_ = 0;
  bool ranked_ = false;
  std::int32_t* ids_ = part_.ids;
  std::int32_t* positions_ = part_.chosen;
};

}  // namespace kvx
