#pragma once
// Pages, tokens and means ranked by what a group of heads makes of them, on the host.

#include <kvx/backend/host.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/index/page_search.hpp>
#include <kvx/layout/host/row_logits.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Ranks columns of logits (G, n) for one group of heads.
///
/// rule        page_search::rule, or each head's best in turn
/// resident    (G) or empty: see group_scores
class page_ranking {
 public:
  /// shapes      room for up to `most` columns, of which `pages` are pages
  page_ranking(scratch_parts& s, int heads, std::int64_t most, std::int64_t pages, const page_search& options)
      : rule_(options.rule),
        interleave_(options.interleave),
        group_(heads),
        pages_(pages),
        group_bytes_(group_scores_scratch(host{}, options.rule, heads, most)),
        scores_(s.take<float>(most)),
        positions_(s.take<std::int32_t>(most)),
        by_head_(s.take<std::int32_t>(options.interleave ? heads * pages : 0)),
        scratch_(s.take<std::byte>(group_bytes_)) {}

  void set_resident(std::span<const float> resident) { resident_ = resident; }

  /// Positions of the `wanted` best columns, ascending; ties to the lowest. Returns how many: columns with NaN are never taken.
  std::int64_t select(tensor_view<const float, 2> logits, std::int64_t wanted, std::int32_t* positions) const {
    const std::int64_t count = logits.extents[1];
    if (count == 0) return 0;
    const std::span scores(scores_, static_cast<std::size_t>(count));
    group_scores(alone_, rule_, logits, resident_, scores, {scratch_, static_cast<std::size_t>(group_bytes_)});
    return top_k<std::int32_t>(alone_, scores, wanted, {positions, static_cast<std::size_t>(count)}).taken;
  }

  /// What a column of the last selection is worth.
  float score_of(std::int32_t column) const { return scores_[column]; }

  /// The best columns, best first, as many as `out` holds. A logit of -inf is none: such a page has no member that was seen.
  ///
  /// pages       (n), ascending: what the columns are
  /// returns     how many were written: pages[column] + first
  std::int64_t rank(tensor_view<float, 2> logits, const std::int32_t* pages, std::int64_t first, std::span<std::int32_t> out) const {
    for (int g = 0; g < group_; ++g) {
      for (std::int64_t i = 0; i < logits.extents[1]; ++i) {
        float& x = *logits.at(g, i);
        if (x == -infinity) x = quiet_nan;
      }
    }
    const std::int64_t found = interleave_ ? in_turn(read_only(logits), out) : best_first(read_only(logits), out);
    for (std::int64_t i = 0; i < found; ++i) {
      std::int32_t& column = out[static_cast<std::size_t>(i)];
      column = pages[column] + static_cast<std::int32_t>(first);
    }
    return found;
  }

 private:
  std::int64_t best_first(tensor_view<const float, 2> logits, std::span<std::int32_t> out) const {
    const std::int64_t taken = select(logits, static_cast<std::int64_t>(out.size()), positions_);
    std::copy(positions_, positions_ + taken, out.begin());
    sort_by(scores_, out.first(static_cast<std::size_t>(taken)));
    return taken;
  }

  /// Rank by rank, head by head, each page once.
  std::int64_t in_turn(tensor_view<const float, 2> logits, std::span<std::int32_t> out) const {
    const auto count = static_cast<std::size_t>(logits.extents[1]);
    const std::size_t wanted = std::min(out.size(), count);
    std::size_t taken[most_row_queries];
    for (int g = 0; g < group_ && count > 0; ++g) {
      const std::span<const float> scores(logits.at(g, 0), count);
      const std::span best(by_head_ + g * pages_, wanted);
      taken[g] = static_cast<std::size_t>(top_k<std::int32_t>(alone_, scores, static_cast<std::int64_t>(wanted), best).taken);
      sort_by(scores.data(), best.first(taken[g]));
    }
    std::size_t found = 0;
    for (std::size_t r = 0; r < wanted; ++r) {
      for (int g = 0; g < group_ && found < wanted; ++g) {
        if (r >= taken[g]) continue;
        const std::int32_t page = by_head_[g * pages_ + static_cast<std::int64_t>(r)];
        const auto end = out.begin() + static_cast<std::ptrdiff_t>(found);
        if (std::find(out.begin(), end, page) == end) out[found++] = page;
      }
    }
    return static_cast<std::int64_t>(found);
  }

  static void sort_by(const float* scores, std::span<std::int32_t> columns) {
    std::sort(columns.begin(), columns.end(),
              [&](std::int32_t a, std::int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  }

  const host alone_{.threads = 1};
  group_rule rule_;
  bool interleave_;
  int group_;
  std::int64_t pages_, group_bytes_;
  std::span<const float> resident_;
  float* scores_;            // (most)
  std::int32_t* positions_;  // (most)
  std::int32_t* by_head_;    // (G, pages)
  std::byte* scratch_;
};

}  // namespace kvx
