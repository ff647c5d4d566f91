#pragma once
// One search for semantic pages on the host: what it looks at, step by step, and the logits of the best member of each page.

#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_lists.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/host/nearest_places.hpp>
#include <kvx/index/host/page_proposals.hpp>
#include <kvx/index/host/page_ranking.hpp>
#include <kvx/index/page_search.hpp>
#include <kvx/layout/host/row_logits.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace kvx {

namespace host_pages {

/// What exponentials of a head are relative to, and their sum over what was seen.
struct scale_of_head {
  float most = 0;
  float sum = 0;
};

/// Where a search keeps its numbers. Memory is touched where it is used.
struct search_parts {
  float* key_queries;       // (G, row_query_pitch)
  float* mean_queries;      // (G, row_query_pitch)
  std::int32_t* ids;        // (tokens) of one level
  std::int32_t* roots;      // (tokens) children of the root
  std::int32_t* beam;       // (tokens) positions of a selection
  float* logits;            // (G, tokens) of one level
  std::int32_t* slots;      // (pages) place of a page in what follows, -1: no member of it has been seen
  std::int32_t* seen;       // (pages) the page of each place
  float* page_logits;       // (G, pages) of the best member
  float* ordered;           // (G, pages) the same by page
  float* promises;          // (pages) of pages that may be looked at: their rank
  float* promised;          // (G, pages) and their logits
  float* weights;           // (G, pages) exponentials of page_logits
  scale_of_head* relative;     // (G)
  std::int32_t* touched;    // (pages)
  page_ranking ranking;
  nearest_places nearest;
  page_proposals proposals;

  search_parts(scratch_parts& s, page_shape page, int heads, std::int64_t tokens, const page_search& options)
      : search_parts(s, page.key_dim, heads, tokens, ceil_div(tokens, page.tokens), options) {}

 private:
  search_parts(scratch_parts& s, int dim, int head_count, std::int64_t tokens, std::int64_t pages, const page_search& options)
      : key_queries(s.take<float>(head_count * row_query_pitch(dim))),
        mean_queries(s.take<float>(head_count * row_query_pitch(dim))),
        ids(s.take<std::int32_t>(tokens)),
        roots(s.take<std::int32_t>(tokens)),
        beam(s.take<std::int32_t>(tokens)),
        logits(s.take<float>(head_count * tokens)),
        slots(s.take<std::int32_t>(pages)),
        seen(s.take<std::int32_t>(pages)),
        page_logits(s.take<float>(head_count * pages)),
        ordered(s.take<float>(head_count * pages)),
        promises(s.take<float>(pages)),
        promised(s.take<float>(head_count * pages)),
        weights(s.take<float>(head_count * pages)),
        relative(s.take<scale_of_head>(head_count)),
        touched(s.take<std::int32_t>(pages)),
        ranking(s, head_count, tokens, pages, options),
        nearest(s, dim, head_count, tokens),
        proposals(s, dim, head_count, pages) {}
};

/// One search.
template <class E, class MemberLogits>
class finder {
 public:
  finder(const dci_shape& shape, const dci_head<E>& of, const page_query& query, const page_search& options, const MemberLogits& members,
         const search_parts& parts)
      : shape_(shape),
        of_(of),
        query_(query),
        options_(options),
        members_(members),
        at_(parts),
        group_(static_cast<int>(query.queries.extents[0])),
        page_tokens_(of.rows.page_tokens),
        first_page_(query.begin / page_tokens_),
        pages_(query.end / page_tokens_ - first_page_) {
    if (query.resident != nullptr) at_.ranking.set_resident(std::span(query.resident, static_cast<std::size_t>(group_)));
  }

  page_search_result result() const { return result_; }

  /// Every token of the zone.
  void look_at_all() {
    std::int64_t count = 0;
    for (std::int64_t page = first_page_; page < first_page_ + pages_; ++page) {
      for (std::int64_t slot = 0; slot < page_tokens_; ++slot) at_.ids[count++] = static_cast<std::int32_t>(page * page_tokens_ + slot);
    }
    look_at(count);
  }

  /// From the top of the tree down: the children of the best tokens of the level above.
  void descend(const dci_cells& cells, std::int64_t breadth) {
    std::int64_t roots = 0, best = 0;
    for (std::int32_t t = cells.root; t >= 0; t = cells.sibling[t]) {
      if (t < query_.end) at_.roots[roots++] = t;
    }
    std::sort(at_.roots, at_.roots + roots, [&](std::int32_t a, std::int32_t b) {
      const int x = level_of(shape_, a), y = level_of(shape_, b);
      return x != y ? x > y : a < b;
    });
    const bool narrow = options_.nearest > 0 && lines_of(shape_) > 0;
    if (narrow) at_.nearest.prepare(shape_, query_.queries);
    std::int64_t root = 0;
    for (int level = roots > 0 ? level_of(shape_, at_.roots[0]) : -1; level >= 0; --level) {
      std::int64_t count = 0;
      for (std::int64_t i = 0; i < best; ++i) {  // at_.beam holds tokens of the level above
        for (std::int32_t t = cells.child[at_.beam[i]]; t >= 0; t = cells.sibling[t]) {
          if (t < query_.end) at_.ids[count++] = t;
        }
      }
      for (; root < roots && level_of(shape_, at_.roots[root]) == level; ++root) at_.ids[count++] = at_.roots[root];
      if (narrow) count = at_.nearest.of(shape_, of_, options_.nearest, at_.ids, count, at_.logits);
      if (level > 0) std::sort(at_.ids, at_.ids + count);  // equal ones: the lowest position first
      look_at(count);
      if (level == 0) break;
      best = at_.ranking.select(read_only(logits(count)), level == 1 ? breadth : upper_breadth * breadth, at_.beam);
      for (std::int64_t i = 0; i < best; ++i) at_.beam[i] = at_.ids[at_.beam[i]];
    }
  }

  /// Logits of the means of all pages of the zone that have a member. Returns how many; at_.ids holds them, counted from its first.
  std::int64_t look_at_means() {
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < pages_; ++j) {
      if (of_.packed(shape_, first_page_ + j).count() > 0) at_.ids[count++] = static_cast<std::int32_t>(j);
    }
    return means_of_pages(count);
  }

  /// The same of the `wanted` pages that the codes of the means propose.
  std::int64_t look_at_proposed(std::int64_t wanted) {
    const std::int64_t proposed = at_.proposals.propose(shape_, of_, query_, wanted, at_.ids);
    for (std::int64_t i = 0; i < proposed; ++i) __builtin_prefetch(of_.packed(shape_, first_page_ + at_.ids[i]).data);
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < proposed; ++i) {
      if (of_.packed(shape_, first_page_ + at_.ids[i]).count() > 0) at_.ids[count++] = at_.ids[i];
    }
    result_.means += pages_;
    return means_of_pages(count);
  }

  /// The same of the pages of the best `blocks` blocks.
  std::int64_t look_at_means_of_blocks(std::int64_t blocks) {
    const std::int64_t pages_of_block = shape_.block / page_tokens_;
    std::int64_t count = 0;
    for (std::int64_t b = query_.begin / shape_.block; b < query_.end / shape_.block; ++b)
      at_.ids[count++] = static_cast<std::int32_t>(b * pages_of_block);
    row_logits<bf16>(
        mean_queries_, 0, count, [&](std::int64_t i) { return of_.mean_of(at_.ids[i]) + of_.rows.key_dim; }, logits(count));
    result_.means += count;
    const std::int64_t best = at_.ranking.select(read_only(logits(count)), blocks, at_.beam);
    for (std::int64_t i = 0; i < best; ++i) at_.roots[i] = at_.ids[at_.beam[i]];
    count = 0;
    for (std::int64_t i = 0; i < best; ++i) {
      for (std::int64_t j = at_.roots[i]; j < at_.roots[i] + pages_of_block; ++j) {
        if (j >= first_page_ && of_.packed(shape_, j).count() > 0) at_.ids[count++] = static_cast<std::int32_t>(j - first_page_);
      }
    }
    return means_of_pages(count);
  }

  /// Adds to the logits of `count` means what the spread of each page may add.
  void add_spreads(std::int64_t count) {
    const float scale = logit_scale(query_.scale, of_.rows.key_dim);
    for (int g = 0; g < group_; ++g) {
      double square = 0;
      for (int d = 0; d < of_.rows.key_dim; ++d) {
        const auto q = static_cast<double>(*query_.queries.at(g, d));
        square += q * q;
      }
      const float factor = options_.spread * std::fabs(scale) * static_cast<float>(std::sqrt(square));
      float* const row = logits(count).at(g, 0);
      for (std::int64_t i = 0; i < count; ++i) row[i] += factor * of_.packed(shape_, first_page_ + at_.ids[i]).spread();
    }
  }

  /// The members of the best of `count` pages whose means were looked at, by mean and spread: of `probes`, or, where that is 0, of as many
  /// as it takes: until the next page promises less than probe_margin times what the last of those that would be found is worth, `most` at
  /// last.
  void look_at_best(std::int64_t count, std::int64_t probes, std::int64_t most) {
    if (options_.spread != 0) add_spreads(count);
    const std::int64_t best = at_.ranking.select(read_only(logits(count)), probes > 0 ? probes : most, at_.beam);
    for (std::int64_t i = 0; i < best; ++i) {
      at_.promises[i] = at_.ranking.score_of(at_.beam[i]);
      for (int g = 0; g < group_; ++g) at_.promised[g * pages_ + i] = *logits(count).at(g, at_.beam[i]);
      at_.beam[i] = at_.ids[at_.beam[i]];
      at_.roots[i] = static_cast<std::int32_t>(i);
    }
    const auto before = [&](std::int32_t x, std::int32_t y) {
      return at_.promises[x] != at_.promises[y] ? at_.promises[x] > at_.promises[y] : x < y;
    };
    std::int64_t seen = 0, sorted = 0;  // of at_.roots, which become the order of promises only as far as they are asked
    std::int64_t step = probes > 0 ? best : std::min(best, first_probes(pages_, options_.pages));
    while (seen < best) {
      if (seen + step > sorted) {
        const std::int64_t end = std::min(best, std::max(seen + step, 2 * sorted));
        if (end < best) std::nth_element(at_.roots + sorted, at_.roots + end, at_.roots + best, before);
        if (seen > 0) std::sort(at_.roots + sorted, at_.roots + end, before);
        sorted = end;
      }
      if (seen > 0 && !next_matters(at_.roots[seen])) break;
      for (std::int64_t i = seen; i < seen + step; ++i) at_.touched[i - seen] = at_.beam[at_.roots[i]];
      look_at_members(at_.touched, step);
      seen += step;
      step = std::min(best - seen, std::max<std::int64_t>(4, seen / 8));
    }
  }

  /// The members of some pages, counted from the first of the zone.
  void look_at_members(const std::int32_t* pages, std::int64_t count) {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(of_.packed(shape_, first_page_ + pages[i]).data);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t j = first_page_ + pages[i], block = j * page_tokens_ / shape_.block * shape_.block;
      const packed_page page = of_.packed(shape_, j);
      for (int m = 0; m < page.count(); ++m) at_.ids[n++] = static_cast<std::int32_t>(block + page.member(m));
    }
    const tensor_view<float, 2> scored = score(n);
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t end = first + of_.packed(shape_, first_page_ + pages[i]).count();
      float* const best = best_of(pages[i]);
      for (int g = 0; g < group_; ++g) best[g * pages_] = largest(scored.at(g, first), end - first, best[g * pages_]);
      first = end;
    }
  }

  /// The best pages among those whose members were seen, best first.
  void rank_members(std::span<std::int32_t> out) {
    const std::int64_t count = used_;
    std::int64_t seen = 0;
    if (used_ < pages_ / 16) {  // few: sorting them is cheaper than looking for them
      std::copy_n(at_.seen, used_, at_.touched);
      std::sort(at_.touched, at_.touched + used_);
    } else {
      for (std::int64_t j = 0; seen < used_; ++j) {
        at_.touched[seen] = static_cast<std::int32_t>(j);
        seen += at_.slots[j] >= 0 ? 1 : 0;
      }
    }
    for (int g = 0; g < group_; ++g) {
      for (std::int64_t i = 0; i < count; ++i) at_.ordered[g * pages_ + i] = at_.page_logits[g * pages_ + at_.slots[at_.touched[i]]];
    }
    tensor_view<float, 2> by_page(at_.ordered, group_, pages_);
    by_page.extents[1] = count;
    result_.found = at_.ranking.rank(by_page, at_.touched, first_page_, wanted(out));
  }

  /// The best of `count` pages whose means were looked at, best first.
  void rank_means(std::int64_t count, std::span<std::int32_t> out) {
    result_.found = at_.ranking.rank(logits(count), at_.ids, first_page_, wanted(out));
  }

  void start() { std::fill_n(at_.slots, pages_, -1); }
  void prepare_keys() { key_queries_ = prepare_row_queries<E>(query_.queries, query_.scale, at_.key_queries); }
  void prepare_means() { mean_queries_ = prepare_row_queries<bf16>(query_.queries, query_.scale, at_.mean_queries); }

 private:
  std::span<std::int32_t> wanted(std::span<std::int32_t> out) const {
    return out.first(std::min(out.size(), static_cast<std::size_t>(options_.pages)));
  }
  tensor_view<float, 2> logits(std::int64_t count) const { return tensor_view<float, 2>(at_.logits, group_, count); }

  /// Logits of the tokens at_.ids (count).
  tensor_view<float, 2> score(std::int64_t count) {
    const tensor_view<float, 2> scored = logits(count);
    members_(key_queries_, std::span<const std::int32_t>(at_.ids, static_cast<std::size_t>(count)), scored);
    result_.keys += count;
    return scored;
  }

  /// Scores them and gives each page the logits of its best.
  void look_at(std::int64_t count) {
    const tensor_view<float, 2> scored = score(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t j = of_.semantic_page(shape_, at_.ids[i]) - first_page_;
      if (j < 0) continue;
      float* const best = best_of(j);
      for (int g = 0; g < group_; ++g) best[g * pages_] = std::max(best[g * pages_], *scored.at(g, i));  // NaN changes nothing
    }
  }

  /// The largest of n numbers and another one; NaN among them changes nothing.
  static float largest(const float* x, std::int64_t n, float other) {
    float most[4] = {other, other, other, other};  // side by side, since one after the other would wait
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      for (int j = 0; j < 4; ++j) most[j] = std::max(most[j], x[i + j]);
    }
    for (; i < n; ++i) most[0] = std::max(most[0], x[i]);
    return std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  }

  /// The logits of the best member of page j, head g at g * pages_; -inf at first.
  float* best_of(std::int64_t j) {
    std::int32_t& slot = at_.slots[j];
    if (slot < 0) {
      at_.seen[used_] = static_cast<std::int32_t>(j);
      slot = static_cast<std::int32_t>(used_++);
      for (int g = 0; g < group_; ++g) at_.page_logits[g * pages_ + slot] = -infinity;
    }
    return at_.page_logits + slot;
  }

  /// Whether the page of promise i promises enough, by the softmax sum over the pages that were seen.
  bool next_matters(std::int32_t i) {
    float* const worth = at_.logits;  // (used) of no more use
    std::fill_n(worth, used_, 0.0f);
    const auto weight = [](float x) { return exp(std::min(x, 60.0f)); };
    float next = 0;
    for (int g = 0; g < group_; ++g) {
      const float* const best = at_.page_logits + g * pages_;
      float* const weights = at_.weights + g * pages_;
      scale_of_head& head = at_.relative[g];
      if (weighed_ == 0) {  // by what is seen first
        float resident = query_.resident != nullptr ? query_.resident[g] : -infinity;
        if (is_nan(resident)) resident = -infinity;  // as softmax_share has it
        const float most = std::max(*std::max_element(best, best + used_), resident);
        head = {most == -infinity ? 0 : most, 0};
        head.sum = weight(resident - head.most);
      }
      for (std::int64_t j = weighed_; j < used_; ++j) head.sum += weights[j] = weight(best[j] - head.most);
      if (!(head.sum > 0)) continue;
      const float share = 1 / head.sum;
      for (std::int64_t j = 0; j < used_; ++j) worth[j] += weights[j] * share;
      next += weight(at_.promised[g * pages_ + i] - head.most) * share;
    }
    weighed_ = used_;
    const auto last = static_cast<std::ptrdiff_t>(std::min<std::int64_t>(used_, options_.pages)) - 1;
    std::nth_element(worth, worth + last, worth + used_, std::greater<float>());
    return !(next < probe_margin * worth[last]);
  }

  std::int64_t means_of_pages(std::int64_t count) {
    row_logits<bf16>(
        mean_queries_, 0, count,
        [&](std::int64_t i) {
          __builtin_prefetch(of_.packed(shape_, first_page_ + at_.ids[i]).data);  // whose spread is read next
          return of_.mean_of(first_page_ + at_.ids[i]);
        },
        logits(count));
    result_.means += count;
    return count;
  }

  const dci_shape& shape_;
  const dci_head<E>& of_;
  const page_query& query_;
  const page_search& options_;
  const MemberLogits& members_;
  search_parts at_;
  int group_;
  std::int64_t page_tokens_, first_page_, pages_;
  std::int64_t used_ = 0, weighed_ = 0;
  row_queries key_queries_, mean_queries_;
  page_search_result result_;
};

}  // namespace host_pages

}  // namespace kvx
