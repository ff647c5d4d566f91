#pragma once
// The first look at the pages of a long zone on the host: those that the codes of their means propose to a group of queries.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_codes.hpp>
#include <kvx/index/page_search.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/sketch/whole_query.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

static_assert(simd::pages_of_group == coded_pages);

/// Pages by the largest over heads of what a head makes of the page's code less the most it makes of any. Queries that are zero, not
/// finite or near it have no say.
///
/// exactness   integer sums, one product: the same pages everywhere
/// cost        D / 2 bytes a page, in lines
class page_proposals {
 public:
  page_proposals(scratch_parts& s, int dim, int heads, std::int64_t pages)
      : lines_{dim},
        heads_(heads),
        pitch_(round_up(pages, coded_pages) + 2 * coded_pages),
        rotated_(s.take<float>(std::int64_t{heads} * dim)),
        words_(s.take<std::int32_t>(std::int64_t{2} * lines_.lines() * heads)),
        units_(s.take<float>(heads)),
        most_(s.take<float>(heads)),
        worth_(s.take<float>(heads * pitch_)),
        scores_(s.take<float>(pitch_)) {}

  /// The `wanted` best pages of a zone, ascending, counted from its first; ties to the lowest. Returns how many.
  ///
  /// ids         room for all pages of the zone
  template <class E>
  std::int64_t propose(const dci_shape& shape, const dci_head<E>& of, const page_query& query, std::int64_t wanted,
                       std::int32_t* ids) const {
    const std::int64_t P = of.rows.page_tokens, first = query.begin / P, pages = query.end / P - first, skipped = first % coded_pages;
    const int used = prepare(shape, query);
    if (used == 0) {
      std::fill_n(scores_, pages, 0.0f);
    } else {
      sums(of, first - skipped, query.end / P, used);
      for (int g = 0; g < used; ++g) most_[g] = simd::rerank_kernels().largest(worth_ + g * pitch_ + skipped, pages);
      simd::page_kernels().best_of_heads(worth_ + skipped, pitch_, used, pages, most_, scores_);
    }
    const std::span<const float> scores(scores_, static_cast<std::size_t>(pages));
    return top_k<std::int32_t>(alone_, scores, wanted, {ids, scores.size()}).taken;
  }

 private:
  /// Rotated queries in whole numbers, four to a word: (lines, 2, used). Returns how many heads are used.
  int prepare(const dci_shape& shape, const page_query& query) const {
    const int dim = lines_.dim;
    const float scale = query.scale < 0 ? -1.0f : 1.0f;
    int used = 0;
    for (int g = 0; g < heads_; ++g) {
      float* const x = rotated_ + std::int64_t{used} * dim;
      for (int d = 0; d < dim; ++d) x[d] = *query.queries.at(g, d);
      rotate(x, static_cast<std::size_t>(dim), shape.seed);
      const query_scale by = scale_of(x, 1, dim);
      if (!has_a_say(by)) continue;
      units_[used] = scale * by.unit;
      most_[used++] = by.inverse;
    }
    for (int g = 0; g < used; ++g) {
      for (int i = 0; i < 2 * lines_.lines(); ++i)
        words_[i * used + g] = query_word(rotated_ + std::int64_t{g} * dim, dim, 4 * i, most_[g]);
    }
    return used;
  }

  /// What the heads make of pages [first, end), `first` a multiple of coded_pages.
  template <class E>
  void sums(const dci_head<E>& of, std::int64_t first, std::int64_t end, int used) const {
    const simd::page_lines lines{reinterpret_cast<const std::uint8_t*>(of.codes.at(0, of.head)), of.codes.pitch, lines_.per_page(),
                                 lines_.lines()};
    simd::page_kernels().page_sums(words_, used, lines, of.column_pages + first, (end - first) / coded_pages, units_, worth_, pitch_);
  }

  const host alone_{.threads = 1};
  page_code_lines lines_;
  int heads_;
  std::int64_t pitch_;
  float* rotated_;       // (G, D)
  std::int32_t* words_;  // (lines, 2, G)
  float *units_, *most_;  // (G)
  float* worth_;         // (G, pitch)
  float* scores_;        // (pitch)
};

}  // namespace kvx
