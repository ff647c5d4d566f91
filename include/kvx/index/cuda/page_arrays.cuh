#pragma once
// The arrays of a search for semantic pages on the device, for all units at once.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/kept_pages.cuh>
#include <kvx/index/page_search.hpp>
#include <kvx/index/promoted_tokens.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/device_batch.hpp>
#include <kvx/layout/far_rows.hpp>
#include <kvx/layout/row_ids.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/token_zone.hpp>
#include <kvx/layout/zones.hpp>

#include <cstdint>

namespace kvx {

/// What searches are planned for. A unit is a new token and a KV head: unit = token * heads + head.
///
/// heads, group    KV heads; query heads of each
/// tokens          new tokens of a step at most
/// longest         tokens of a sequence at most
/// budget          budget.wanted(page tokens, pages of the zone): pages to be found, no fewer of a longer zone
/// how             page_search, but for its pages
/// whole_below     in sequences that hold fewer committed tokens than this all pages of the zone are found
/// by_page         members are listed in the order of their pages, too
template <class Budget>
struct page_search_shape {
  dci_shape index;
  int page_tokens = 16;
  zones cut;
  int heads = 1;
  int group = 1;
  std::int64_t tokens = 1;
  std::int64_t longest = 0;
  Budget budget;
  page_search how;
  std::int64_t whole_below = 0;
  bool by_page = false;

  KVX_HD constexpr std::int64_t units() const { return tokens * heads; }

  /// Pages to be found in a zone of so many, of a sequence of so many committed tokens.
  KVX_HD constexpr std::int64_t wanted(std::int64_t pages, std::int64_t committed) const {
    return committed < whole_below ? pages : budget.wanted(page_tokens, pages);
  }
  /// Whether pages are found through a tree.
  KVX_HD constexpr bool descends() const { return index.rank == dci_shape::ranking::best_member; }
  /// Whether composite indices narrow the children of a beam.
  KVX_HD constexpr bool narrows() const { return descends() && how.nearest > 0 && lines_of(index) > 0; }

  /// Pages whose members are looked at, at most.
  KVX_HD constexpr std::int64_t probes(std::int64_t pages, std::int64_t wanted) const {
    const std::int64_t most = how.probes > 0 ? how.probes : default_probes(index, page_tokens, pages * page_tokens, wanted);
    return most < pages ? most : pages;
  }
  /// Pages whose means are looked at: all, or, where means are coded, those that their codes propose.
  KVX_HD constexpr std::int64_t looked_at(std::int64_t pages, std::int64_t wanted) const {
    return codes_means(index, page_tokens) && how.probes == 0 ? proposed_pages(pages, wanted) : pages;
  }
  /// Tickets that a search needs.
  KVX_HD constexpr std::int64_t tickets() const {
    const std::int64_t pages = ceil_div(longest, page_tokens);
    return looked_at(pages, wanted(pages, longest)) < pages ? units() : 0;
  }
  /// Pages or blocks that one unit puts in order at most.
  KVX_HD constexpr std::int64_t ordered(std::int64_t pages, std::int64_t wanted) const {
    using ranking = dci_shape::ranking;
    const std::int64_t listed = index.rank == ranking::mean_then_member  ? probes(pages, wanted)
                                : index.rank == ranking::two_level_means ? ceil_div(pages, index.block / page_tokens)
                                                                         : 0;
    return how.interleave && listed < wanted ? wanted : listed;
  }
};

/// What a beam through the tree keeps; nothing for other rankings.
///
/// marks       (units, mark_words) a bit for each token, set for those of the beams
/// orders      (units, G, page_pitch) score_order of the logits of each page's best member that was seen, 0 for none
/// ids, logits, scores   (units, pitch), (units, G, pitch), (units, pitch) of the tokens of one level
/// asked       composite indices: (units, G, lines) where the queries stand
/// chosen      the same: (units, mark_words) a bit for each token of the zone that is looked at at level 0, from its first on
/// children, priorities   the same: (units, child_pitch) of the tokens of level 0 that follow the beam
struct beam_arrays {
  unsigned* marks = nullptr;
  unsigned* orders = nullptr;
  std::int32_t* ids = nullptr;
  float* logits = nullptr;
  float* scores = nullptr;
  float* asked = nullptr;
  unsigned* chosen = nullptr;
  std::int32_t* children = nullptr;
  float* priorities = nullptr;
  std::int64_t mark_words = 0, pitch = 0, child_pitch = 0;

  beam_arrays() = default;
  template <class Budget>
  beam_arrays(const page_search_shape<Budget>& s, std::int64_t page_pitch, scratch_parts& memory) {
    if (!s.descends()) return;
    const std::int64_t units = s.units();
    mark_words = ceil_div(s.longest, 32);
    pitch = round_up(most_promoted(s.index, s.longest), 4);
    marks = memory.take<unsigned>(units * mark_words);
    orders = memory.take<unsigned>(units * s.group * page_pitch);
    ids = memory.take<std::int32_t>(units * pitch);
    logits = memory.take<float>(units * s.group * pitch);
    scores = memory.take<float>(units * pitch);
    if (!s.narrows()) return;
    child_pitch = round_up(s.longest, 4);
    asked = memory.take<float>(units * s.group * lines_of(s.index));
    chosen = memory.take<unsigned>(units * mark_words);
    children = memory.take<std::int32_t>(units * child_pitch);
    priorities = memory.take<float>(units * child_pitch);
  }
};

/// What a search keeps and leaves. Trivially copyable; all pointers are the device's.
///
/// ids, counts (units, id_pitch) members of the pages found, ascending; how many (units), -1 for a unit that takes no part
/// found       (units, found_pitch) pages, ascending, found_counts (units) of them; before: members of those before each
/// missed      (units): how many pages of the zone were not found
/// slots, places   by_page: (units, id_pitch) members page after page: P times the page and the number of the member; where each stands
///             among the ids
/// proposed    (units, proposed_pitch) pages of long zones that the codes of their means propose, ascending, counted from the first of the
///             zone; null where no zone is that long
/// tickets     (units) of a launch that proposes, the caller's: 0 before and after
/// logits      (units, G, page_pitch) of the pages' means and spreads, or of their best members where a tree is searched; entry 0 for the
///             page of the zone's first token, or for the first page that is proposed
/// scores      (units, page_pitch)
/// tops        (units, probe_pitch) the most promising pages, or blocks, ascending; order: the best first
/// best        (units, G, probe_pitch) logits of the best member of each page in that order, or of blocks' means; worth: (units,
///             probe_pitch)
struct page_search_arrays {
  std::int32_t* ids = nullptr;
  std::int32_t* counts = nullptr;
  std::int32_t* found = nullptr;
  std::int32_t* found_counts = nullptr;
  std::int32_t* before = nullptr;
  std::int32_t* missed = nullptr;
  std::int32_t* slots = nullptr;
  std::int32_t* places = nullptr;
  std::int32_t* proposed = nullptr;
  unsigned* tickets = nullptr;
  float* logits = nullptr;
  float* scores = nullptr;
  std::int32_t* tops = nullptr;
  std::int32_t* order = nullptr;
  float* best = nullptr;
  float* worth = nullptr;
  beam_arrays tree;
  std::int64_t id_pitch = 0, found_pitch = 0, proposed_pitch = 0, page_pitch = 0, probe_pitch = 0;

  page_search_arrays() = default;
  template <class Budget>
  page_search_arrays(const page_search_shape<Budget>& s, scratch_parts& memory) {
    const std::int64_t units = s.units(), pages = ceil_div(s.longest, s.page_tokens), wanted = s.wanted(pages, s.longest);
    const std::int64_t whole = s.whole_below < s.longest ? ceil_div(s.whole_below, s.page_tokens) : pages;
    found_pitch = s.whole_below > 0 && whole > wanted ? whole : wanted;
    id_pitch = found_pitch * s.page_tokens;
    page_pitch = round_up(pages, 4);
    probe_pitch = round_up(s.ordered(pages, wanted), 4);
    ids = memory.take<std::int32_t>(units * id_pitch);
    counts = memory.take<std::int32_t>(units);
    found = memory.take<std::int32_t>(units * found_pitch);
    found_counts = memory.take<std::int32_t>(units);
    before = memory.take<std::int32_t>(units * found_pitch);
    missed = memory.take<std::int32_t>(units);
    if (s.by_page) {
      slots = memory.take<std::int32_t>(units * id_pitch);
      places = memory.take<std::int32_t>(units * id_pitch);
    }
    if (s.tickets() > 0) {
      proposed_pitch = s.looked_at(pages, wanted);
      proposed = memory.take<std::int32_t>(units * proposed_pitch);
    }
    logits = memory.take<float>(units * s.group * page_pitch);
    scores = memory.take<float>(units * page_pitch);
    tops = memory.take<std::int32_t>(units * probe_pitch);
    order = memory.take<std::int32_t>(units * probe_pitch);
    best = memory.take<float>(units * s.group * probe_pitch);
    worth = memory.take<float>(units * probe_pitch);
    tree = beam_arrays(s, page_pitch, memory);
  }

  row_ids members() const { return {ids, counts, id_pitch, id_pitch}; }
};

/// What the kernels of a search are told.
///
/// batch       items under the ids of pages and their columns; row_items: the same under the frames of their rows, where these may be far,
///             else null. `far` says where those lie
/// plain, resident   (units, G, D) queries; (units, G) log-sum-exp of each head's residents
/// wide        keys begin on multiples of 16 bytes
/// links, promoted   where a tree is searched; places: where it has composite indices
/// kept        selections that are used again
/// mean_codes  null data where means are not coded: then all means are looked at
template <class E, class Budget, class Far = all_near>
struct page_search_call : page_search_shape<Budget> {
  using element_type = E;

  row_view<const E> rows;
  column_array members;
  column_array means;
  device_batch batch;
  const batch_item* row_items = nullptr;
  Far far = {};
  const float* plain = nullptr;
  const float* resident = nullptr;
  float scale = 1;
  bool wide = false;
  page_search_arrays to;
  column_array links = {};
  column_array places = {};
  promoted_tokens promoted = {};
  kept_pages_of_layer kept;
  column_array mean_codes = {};

  KVX_HD const bf16* mean(std::int32_t page, std::int64_t head) const { return reinterpret_cast<const bf16*>(means.at(page, head)); }
  KVX_HD constexpr packed_page packed(std::int32_t page, std::int64_t head) const {
    return {members.at(page, head), this->page_tokens, packed_page::entry_bytes(this->index)};
  }
  /// Whether pages of long zones are proposed by the codes of their means.
  KVX_HD constexpr bool proposes() const { return mean_codes.data != nullptr && to.proposed != nullptr; }
  KVX_HD std::int32_t link(std::int32_t page, std::int64_t head, std::int64_t slot) const {
    return reinterpret_cast<const std::int32_t*>(links.at(page, head))[slot];
  }
  /// Where the token in a slot stands.   (lines)
  KVX_HD const float* places_of(std::int32_t page, std::int64_t head, std::int64_t slot) const {
    return reinterpret_cast<const float*>(places.at(page, head)) + slot * lines_of(this->index);
  }
};

/// The zone of one unit, in whole pages. Plain members: it lies in shared memory.
struct page_zone {
  const std::int32_t* pages;      // of the sequence
  std::int64_t first, count;      // pages of the zone
  std::int64_t wanted;            // to be found; -1: the unit takes no part
  const std::int32_t* frames;     // of the sequence's rows: where they do not differ, its pages
  std::int64_t position;          // of the token
  kept_use kept;
  std::int64_t looked_at;         // pages whose means are looked at
  const std::int32_t* listed;     // (looked_at) which these are, ascending, counted from the first; null: all

  /// The i-th page that is looked at, counted from the first, and which one of them a page of the sequence is.
  KVX_HD constexpr std::int64_t page(std::int64_t i) const { return listed != nullptr ? listed[i] : i; }
  KVX_HD constexpr std::int64_t number_of(std::int64_t page) const {
    std::int64_t low = 0, high = listed != nullptr ? looked_at : 0;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (first + listed[middle] < page) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return listed != nullptr ? low : page - first;
  }

  /// Whether there is a choice, which this launch makes.
  KVX_HD constexpr bool is_chosen() const { return wanted > 0 && wanted < count && !kept.waits; }
  KVX_HD constexpr bool is_searched() const { return is_chosen() && kept.from == nullptr; }
};

static_assert([] {
  const std::int32_t listed[3] = {0, 4, 5};
  const page_zone zone{nullptr, 10, 9, 1, nullptr, 0, {false, nullptr, nullptr}, 3, listed};
  return zone.page(1) == 4 && zone.number_of(10) == 0 && zone.number_of(14) == 1 && zone.number_of(15) == 2;
}());

template <class Call>
KVX_HD constexpr page_zone page_zone_of(const Call& call, std::int64_t unit) {
  const token_zone z = zone_of(call.batch, call.cut, call.page_tokens, unit / call.heads);
  if (z.entry < 0) return {nullptr, 0, 0, -1, nullptr, 0, {false, nullptr, nullptr}, 0, nullptr};
  const batch_item& item = call.batch.items[z.entry];
  const std::int64_t count = (z.end - z.begin) / call.page_tokens, wanted = count > 0 ? call.wanted(count, z.committed) : 0;
  const std::int64_t most = call.proposes() ? call.looked_at(count, wanted) : count;
  return {item.pages,
          z.begin / call.page_tokens,
          count,
          wanted,
          (call.row_items != nullptr ? call.row_items : call.batch.items)[z.entry].pages,
          z.length - 1,
          call.kept.use_of(z.entry, unit % call.heads, z.length - 1, item.queries),
          most,
          most < count ? call.to.proposed + unit * call.to.proposed_pitch : nullptr};
}

}  // namespace kvx
