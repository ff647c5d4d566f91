#pragma once
// Attention in tiers over semantic pages on the host: candidates page by page, and what is left of each page.

#include <kvx/attend/host/tiers.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/layout/page_shape.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvx {

/// Candidates in the order of their semantic pages, as attend_tiers takes them.
///
/// places      (C): where each of the candidates stands
/// ids         (C), by place: P times the page, and the number of the member
/// logits      (G, C), by place
struct page_candidates {
  std::int32_t* places = nullptr;
  std::int32_t* ids = nullptr;
  float* logits = nullptr;
  tier_pages pages;

  page_candidates() = default;
  page_candidates(scratch_parts& s, page_shape page, std::int64_t G, std::int64_t tokens) {
    places = s.take<std::int32_t>(tokens);
    ids = s.take<std::int32_t>(tokens);
    logits = s.take<float>(G * tokens);
    pages.starts = s.take<std::int32_t>(tier_pages::entries(page, tokens));
    pages.left = s.take<std::int32_t>(tier_pages::entries(page, tokens));
  }
};

/// Puts candidates in the order of their pages and finds what is left of every page of a zone.
///
/// what        members are taken out of the tail of their page; one that is not among `taken` stays in it. What is left of a page has a
///             tail where nothing is taken out, or fewest_in_tail members are left
/// shapes      ids (C), ascending tokens of the zone [begin, end); taken (K), ascending positions among them; logits (G, C) of ids
/// cost        O(pages + K G)
template <class E>
void find_page_tails(const dci_shape& shape, const dci_head<E>& of, std::int64_t begin, std::int64_t end, std::span<const std::int32_t> ids,
                     std::span<const std::int32_t> taken, tensor_view<const float, 2> logits, const page_candidates& to) {
  const std::int64_t P = of.rows.page_tokens, first = begin / P, pages = end / P - first, K = std::ssize(taken);
  const auto page_of = [&](std::int32_t position) { return of.semantic_page(shape, ids[static_cast<std::size_t>(position)]) - first; };
  std::int32_t *const starts = to.pages.starts, *const left = to.pages.left;
  std::fill_n(left, pages, 0);
  for (const std::int32_t i : taken) ++left[page_of(i)];
  starts[0] = 0;
  for (std::int64_t j = 0; j < pages; ++j) starts[j + 1] = starts[j] + left[j];
  for (const std::int32_t i : taken) {
    const std::int64_t token = ids[static_cast<std::size_t>(i)], j = page_of(i);
    const std::int32_t place = starts[j + 1] - left[j]--;
    const packed_page page = of.packed(shape, first + j);
    int member = place - starts[j];  // or one behind it: members are ascending
    while (page.member(member) != token % shape.block) ++member;
    to.places[i] = place;
    to.ids[place] = static_cast<std::int32_t>((first + j) * P + member);
    for (std::int64_t g = 0; g < logits.extents[0]; ++g) to.logits[g * K + place] = *logits.at(g, i);
  }
  for (std::int64_t j = 0; j < pages; ++j) {
    const std::int32_t out = starts[j + 1] - starts[j], rest = of.packed(shape, first + j).count() - out;
    left[j] = out == 0 || rest >= fewest_in_tail ? rest : 0;
  }
}

}  // namespace kvx
