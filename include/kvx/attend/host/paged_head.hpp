#pragma once
// One new token and KV head of a decode step on the host, where an index finds semantic pages.

#include <kvx/attend/host/head_attention.hpp>
#include <kvx/attend/host/page_tiers.hpp>
#include <kvx/attend/host/paged_parts.hpp>
#include <kvx/attend/host/row_in_pages.hpp>
#include <kvx/attend/host/tiers.hpp>
#include <kvx/attend/pages.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/host/kept_pages.hpp>
#include <kvx/index/host/page_search.hpp>
#include <kvx/index/host/tree_lists.hpp>
#include <kvx/index/page_reuse.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/layout/host/row_logits.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/tiers.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>

namespace kvx {

/// One layer as retrieval from semantic pages reads it.
///
/// index       the policy, whose rule ranks pages
/// columns_of  (entries) the batch under the page ids of the columns; with rows of the caller's those differ from the rows' own
/// sequences   (entries) their slots: lists.of(slot, layer, head) are the lists of a head, up to the zone's end
/// kept        null where nothing is used again
/// far         null where all rows are near
template <class E, dci_shape Shape>
struct page_layer {
  static constexpr dci_shape shape = Shape;

  const dci_tree<Shape>* index = nullptr;
  row_view<const E> rows;
  block_column_arrays side;
  key_sketch sketch;
  kvx::zones zones;
  std::span<const batch_item> rows_of;
  std::span<const batch_item> columns_of;
  std::span<const reservation::part> sequences;
  const tree_lists* lists = nullptr;
  kept_pages* kept = nullptr;
  int layer = 0;
  far_layer<E>* far = nullptr;
};

/// One new token and KV head. Its methods run in the order they stand here, on the caller's thread.
///
/// what        resident rows first, whose log-sum-exp ranks the others; semantic pages from the index; their members, or where there is a
///             reranker the best of them, into the same softmax; with tiers, their other members by their codes, and all other pages by
///             their means
template <class E, dci_shape Shape, class Reranker>
class paged_head {
 public:
  /// item, query   which entry of the batch, and which of its new tokens
  paged_head(const page_layer<E, Shape>& layer, const Reranker& reranker, std::size_t item, std::int64_t query, std::int64_t head,
             std::int64_t heads, const page_options& options, const host_pages::attend_parts<Reranker>& part)
      : layer_(layer),
        reranker_(reranker),
        options_(options),
        part_(part),
        item_(item),
        head_(head),
        tiered_(tiers_used(others, options.others)),
        placed_(index()),
        far_(layer.far, layer.rows_of[item].pages, head, &placed_, row_in_pages<E, Shape>),
        attention_(layer.rows, layer.rows_of[item], layer.zones, query, head, heads, {options.scale, options.soft_cap}, part.head,
                   {part.stage, static_cast<std::size_t>(part.stage_bytes)}, far()) {}

  /// Attends to the residents, then finds pages.
  template <class T>
  void search(const tensor_view<const T, 3>& q) {
    attention_.load(q);
    attention_.residents();
    const token_zone& zone = attention_.zone;
    const std::int64_t P = layer_.rows.page_tokens;
    if (zone.begin >= zone.end || (options_.keep == 0 && !tiered_.any())) return;
    if constexpr (coded) rotate_queries();
    const std::int64_t wanted = wanted_pages(options_, P, ranks, tiered_.coded, (zone.end - zone.begin) / P);
    if (wanted == 0) return;
    const std::span<std::int32_t> out(part_.pages, static_cast<std::size_t>(wanted));
    if (wanted == (zone.end - zone.begin) / P) {  // all of them: nothing to look for
      std::iota(out.begin(), out.end(), static_cast<std::int32_t>(zone.begin / P));
      found_ = wanted;
    } else if (!take_kept(out)) {
      look_for(out);
    }
  }

  /// Whether the token at a position searches, or takes what another one found.
  static bool searches(const page_reuse& reuse, std::int64_t position) { return reuse.source_position(position) == position; }

  /// Attends to what was found, and writes the result.
  template <class T>
  void attend(const tensor_view<T, 3>& out, const tensor_view<float, 2>& lse) {
    std::int64_t count = tokens_of(Shape, index(), {part_.pages, static_cast<std::size_t>(found_)}, part_.ids);
    if (leaves_others(count)) {
      if constexpr (any(others)) count = attend_below(count);
    } else if constexpr (ranks) {
      if (count > options_.keep) count = keep_best(count);
    }
    attention_.take({part_.ids, static_cast<std::size_t>(count)});
    attention_.write(out, lse);
  }

 private:
  static constexpr tiers others = tiers_of<Reranker>();
  static constexpr bool ranks = !std::is_same_v<Reranker, pass_through>;
  static constexpr bool coded = Shape.rank == dci_shape::ranking::coded_member || requires { Reranker::bits; };
  static constexpr int code_bits = [] {
    if constexpr (requires { Reranker::bits; }) return Reranker::bits;
    return 4;
  }();

  dci_head<E> index() const {
    return tree_head<E>(layer_.rows, layer_.side, layer_.rows_of[item_].pages, layer_.columns_of[item_].pages, head_, layer_.zones.sink);
  }
  far_head<E>* far() { return far_.any() ? &far_ : nullptr; }
  std::span<std::byte> stage() const { return {part_.stage, static_cast<std::size_t>(part_.stage_bytes)}; }
  tensor_view<const float, 2> rotated() const {
    const auto plain = attention_.queries();
    return tensor_view<const float, 2>(part_.rotated, plain.extents[0], plain.extents[1]);
  }

  /// Pages that an earlier layer or token has found. Without any, this one searches.
  bool take_kept(std::span<std::int32_t> out) {
    if (layer_.kept == nullptr || layer_.rows_of[item_].queries > most_keeping_tokens) return false;
    const std::uint32_t slot = layer_.sequences[item_].slot;
    const std::span<const std::int32_t> kept = layer_.kept->find(slot, layer_.layer, head_, attention_.zone.length - 1);
    if (kept.empty()) return false;
    found_ = std::min(std::ssize(kept), std::ssize(out));
    std::copy_n(kept.begin(), found_, out.begin());
    return true;
  }

  void look_for(std::span<std::int32_t> out) {
    const token_zone& zone = attention_.zone;
    const page_search breadth{.pages = static_cast<int>(out.size()),
                              .beam = options_.pages.beam,
                              .nearest = options_.pages.nearest,
                              .probes = options_.pages.probes,
                              .rule = layer_.index->rule,
                              .interleave = layer_.index->interleave};
    const page_query query{attention_.queries(), attention_.lse().data(), attention_.scale(), zone.begin, zone.end};
    if constexpr (Shape.rank == dci_shape::ranking::coded_member) {
      const auto by_codes = [&](const row_queries&, std::span<const std::int32_t> ids, tensor_view<float, 2> logits) {
        rank_by(rsq_ip<code_bits>{}, ids, logits, {part_.codes, static_cast<std::size_t>(part_.codes_bytes)});
      };
      found_ = search_pages(serial_, Shape, index(), {}, query, breadth, by_codes, out, stage()).found;
    } else {
      const dci_cells cells =
          keeps_links(Shape) ? layer_.lists->of(layer_.sequences[item_].slot, layer_.layer, head_).cells() : dci_cells{};
      if (far_.any()) {
        const auto in_slots = [&](const row_queries& q, std::span<const std::int32_t> ids, tensor_view<float, 2> logits) {
          far_.bring(ids);
          row_logits<E>(
              q, 0, std::ssize(ids), [&](std::int64_t i) { return far_.row(ids[static_cast<std::size_t>(i)]).key; }, logits);
        };
        found_ = search_pages(serial_, Shape, index(), cells, query, breadth, in_slots, out, stage()).found;
      } else {
        found_ = search_pages(serial_, Shape, index(), cells, query, breadth, out, stage()).found;
      }
    }
    if (layer_.kept != nullptr && layer_.rows_of[item_].queries <= most_keeping_tokens) {
      layer_.kept->put(layer_.sequences[item_].slot, layer_.layer, head_, zone.length - 1, out.first(static_cast<std::size_t>(found_)));
    }
  }

  void rotate_queries() const {
    const auto plain = attention_.queries();
    for (std::int64_t g = 0; g < plain.extents[0]; ++g) {
      float* const to = part_.rotated + g * plain.extents[1];
      std::copy_n(plain.at(g, 0), plain.extents[1], to);
      rotate(to, static_cast<std::size_t>(plain.extents[1]), layer_.sketch.seed);
    }
  }

  template <class By>
  void rank_by(const By& by, std::span<const std::int32_t> ids, tensor_view<float, 2> logits, std::span<std::byte> scratch) {
    const std::int32_t* const pages = std::is_same_v<By, exact> ? layer_.rows_of[item_].pages : layer_.columns_of[item_].pages;
    group_queries asked{attention_.queries(), {}, attention_.scale()};
    if constexpr (coded) asked.rotated = rotated();
    rerank(serial_, by, layer_.sketch, head_view<E>{layer_.rows, codes_of(layer_.side), pages, head_, far()}, asked, ids, logits, scratch);
  }

  /// Leaves the best `keep` of the ids, ascending. Returns how many.
  std::int64_t keep_best(std::int64_t count) {
    const std::int64_t taken = rank(count);
    for (std::int64_t i = 0; i < taken; ++i) part_.ids[i] = part_.ids[part_.positions[i]];
    return taken;
  }

  /// Logits and scores of all ids, and the positions of the best `keep`, ascending. Returns how many.
  std::int64_t rank(std::int64_t count) {
    if (count == 0) return 0;
    const std::span<const std::int32_t> ids(part_.ids, static_cast<std::size_t>(count));
    const tensor_view<float, 2> logits(part_.logits, attention_.queries().extents[0], count);
    const std::span<float> scores(part_.scores, ids.size());
    rank_by(reranker_, ids, logits, stage());
    group_scores(serial_, reranker_.rule, read_only(logits), attention_.lse(), scores, stage());
    const std::span<std::int32_t> positions(part_.positions, ids.size());
    return top_k<std::int32_t>(serial_, scores, options_.keep, positions).taken;
  }

  /// Whether tokens of the zone that are not among these ids' best take part.
  bool leaves_others(std::int64_t count) const {
    const token_zone& zone = attention_.zone;
    return tiered_.any() && zone.begin < zone.end && (count > options_.keep || found_ < (zone.end - zone.begin) / layer_.rows.page_tokens);
  }

  /// The tiers below the best `keep` of the ids. Leaves those, ascending, and returns how many.
  std::int64_t attend_below(std::int64_t count) {
    const std::int64_t kept = rank(count), G = attention_.queries().extents[0];
    const token_zone& zone = attention_.zone;
    std::int64_t taken = 0;  // candidates whose codes can be read; without coded rows those that are kept
    if (tiered_.coded) {
      for (std::int64_t i = 0; i < count; ++i) {
        if (!is_nan(part_.scores[i])) part_.members[taken++] = static_cast<std::int32_t>(i);
      }
    } else {
      taken = std::copy_n(part_.positions, kept, part_.members) - part_.members;
    }
    const page_candidates& to = part_.by_page;
    const std::span<const std::int32_t> ids(part_.ids, static_cast<std::size_t>(count));
    find_page_tails(Shape, index(), zone.begin, zone.end, ids, {part_.members, static_cast<std::size_t>(taken)},
                    tensor_view<const float, 2>(part_.logits, G, count), to);
    for (std::int64_t i = 0; i < kept; ++i) {
      part_.members[i] = to.places[part_.positions[i]];
      part_.ids[i] = part_.ids[part_.positions[i]];
    }
    key_columns means;
    means[column_means] = layer_.side[column_member_means];
    const row_view<const E>& rows = layer_.rows;
    const page_shape page{rows.page_tokens, rows.key_dim, rows.value_dim};
    const tier_view of{.zone = {page, means, head_, layer_.columns_of[item_].pages, zone.begin, zone.end},
                       .pages = to.pages,
                       .values = page_values_of(layer_.side),
                       .bits = others.value_bits,
                       .seed = layer_.sketch.seed,
                       .ids = {to.ids, static_cast<std::size_t>(taken)},
                       .exact = {part_.members, static_cast<std::size_t>(kept)},
                       .plain = attention_.queries(),
                       .scale = attention_.scale(),
                       .soft_cap = options_.soft_cap};
    attend_tiers<others.value_bits>(of, tiered_, tensor_view<float, 2>(to.logits, G, taken), attention_.states(), attention_.sums(),
                                    stage());
    return kept;
  }

  const host serial_{.threads = 1};
  const page_layer<E, Shape>& layer_;
  const Reranker& reranker_;
  const page_options& options_;
  const host_pages::attend_parts<Reranker>& part_;
  std::size_t item_;
  std::int64_t head_;
  tier_options tiered_;
  dci_head<E> placed_;
  far_head<E> far_;
  head_attention<E> attention_;
  std::int64_t found_ = 0;
};

}  // namespace kvx
