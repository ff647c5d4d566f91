// The table of what is measured of semantic pages, and how.
//
// A share is the attention mass inside the zone that twelve pages of sixteen tokens capture, over all mass inside the zone, mean of the
// group's heads. Heads are weighted alike, so what lies outside of the zone takes no part in the softmax sum over pages, either. Packings
// are measured on the zone [32, position - 32): its whole blocks as an index packs them, what is left as one block. Searches are measured
// on whole blocks alone.

#include "coded_keys.hpp"
#include "head_attention.hpp"
#include "head_metrics.hpp"
#include "indexed_head.hpp"

#include <kvx/index/host/group_rule.hpp>
#include <kvx/sketch/host/top_k.hpp>

#include <algorithm>
#include <numeric>
#include <string>

namespace quality {
namespace {

using kvx::dci_shape;
using packing = dci_shape::packing;
using metric = dci_shape::metric;
using ranking = dci_shape::ranking;

constexpr std::int64_t block = dci_shape{}.block;

/// One query position of a head: its logits, its attention, and the zone.
class asked_position {
 public:
  asked_position(const head_rows& head, std::size_t i, std::int64_t end)
      : zone{page_sink, end},
        queries{head.query(i, 0), static_cast<std::size_t>(head.group * head.dim)},
        logits_(exact_logits(head, i)),
        seen_(logits_.size() / static_cast<std::size_t>(head.group)) {
    for (std::size_t g = 0; g < static_cast<std::size_t>(head.group); ++g) {
      heads_.emplace_back(std::span<const float>(logits_).subspan(g * seen_, seen_));
      double mass = 0;
      for (std::int64_t t = zone.begin; t < zone.end; ++t) mass += heads_.back().mass(t);
      zone_mass_.push_back(mass);
    }
  }

  float logit(std::size_t g, std::int32_t t) const { return logits_[g * seen_ + static_cast<std::size_t>(t)]; }
  std::size_t heads() const { return heads_.size(); }

  /// Share of the mass in the zone of one head.
  double share(std::size_t g, std::span<const std::int32_t> tokens) const {
    double mass = 0;
    for (const std::int32_t t : tokens) mass += heads_[g].mass(t);
    return mass / zone_mass_[g];
  }
  double share(std::span<const std::int32_t> tokens) const {
    double sum = 0;
    for (std::size_t g = 0; g < heads_.size(); ++g) sum += share(g, tokens);
    return sum / static_cast<double>(heads_.size());
  }

  searched zone;
  std::span<const float> queries;

 private:
  std::vector<float> logits_;
  std::size_t seen_;
  std::vector<attention> heads_;
  std::vector<double> zone_mass_;
};

/// Tokens of the best pages by scores.
std::vector<std::int32_t> tokens_of_best(const page_list& pages, std::span<const float> scores) {
  std::vector<std::int32_t> best(std::min(pages.size(), static_cast<std::size_t>(pages_kept))), tokens;
  kvx::top_k<std::int32_t>(kvx::host{.threads = 1}, scores, pages_kept, best);
  for (const std::int32_t j : best) {
    const auto& page = pages[static_cast<std::size_t>(j)];
    tokens.insert(tokens.end(), page.begin(), page.end());
  }
  return tokens;
}

/// Share of the best pages by what each is worth to a head.   worth(g, page)
template <class Worth>
double best_share(const asked_position& at, const page_list& pages, const Worth& worth) {
  std::vector<float> by_page, scores(pages.size());  // (G, pages)
  for (std::size_t g = 0; g < at.heads(); ++g) {
    for (const auto& page : pages) by_page.push_back(worth(g, page));
  }
  const auto group = static_cast<std::int64_t>(at.heads()), count = static_cast<std::int64_t>(pages.size());
  std::vector<std::byte> scratch(static_cast<std::size_t>(kvx::group_scores_scratch(kvx::host{}, {}, group, count)));
  kvx::group_scores(kvx::host{.threads = 1}, {}, kvx::tensor_view<const float, 2>(by_page.data(), group, count), {}, scores, scratch);
  return at.share(tokens_of_best(pages, scores));
}

/// The same by the best member, every token looked at.   logit(g, t)
template <class Logit>
double best_member_share(const asked_position& at, const page_list& pages, const Logit& logit) {
  return best_share(at, pages, [&](std::size_t g, const auto& page) {
    float best = -kvx::infinity;
    for (const std::int32_t t : page) best = std::max(best, logit(g, t));
    return best;
  });
}

double best_member_share(const asked_position& at, const page_list& pages) {
  return best_member_share(at, pages, [&](std::size_t g, std::int32_t t) { return at.logit(g, t); });
}

/// The same by the logit of the mean key, which is the mean of the logits.
double mean_share(const asked_position& at, const page_list& pages) {
  return best_share(at, pages, [&](std::size_t g, const auto& page) {
    float sum = 0;
    for (const std::int32_t t : page) sum += at.logit(g, t);
    return sum / static_cast<float>(page.size());
  });
}

/// The same by the most that a key between the least and the largest of each channel may reach: Quest (arXiv 2406.10774).
double bound_share(const head_rows& head, const asked_position& at, const page_list& pages) {
  return best_share(at, pages, [&](std::size_t g, const auto& page) {
    const float* const q = at.queries.data() + g * static_cast<std::size_t>(head.dim);
    float bound = 0;
    for (int d = 0; d < head.dim; ++d) {
      float most = -kvx::infinity;
      for (const std::int32_t t : page) most = std::max(most, q[d] * head.key(t)[d]);
      bound += most;
    }
    return bound * head.scale();
  });
}

page_list joined(page_list a, const page_list& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// By what pages are ranked.
enum class by { member, mean, bound };

/// Share at every position, of pages(end of the zone).
template <by Rank = by::member, class Pages>
std::vector<double> shares(const head_rows& head, const Pages& pages) {
  std::vector<double> result;
  for (std::size_t i = 0; i < head.positions.size(); ++i) {
    const std::int64_t end = head.positions[i] - page_local;
    const asked_position at(head, i, end);
    const page_list list = pages(end);
    result.push_back(Rank == by::bound  ? bound_share(head, at, list)
                     : Rank == by::mean ? mean_share(at, list)
                                        : best_member_share(at, list));
  }
  return result;
}

/// A packing in blocks.
template <packing Pack, metric By, int Promotion = 30, by Rank = by::member>
std::vector<double> packed(const head_rows& head) {
  const dci_shape shape{.pack = Pack, .by = By, .first_promotion = Promotion};
  const indexed_head index(head, shape);
  dci_shape rest = shape;
  if (Pack == packing::projection) rest.pack = packing::positional;  // less than a block is in no cell
  return shares<Rank>(
      head, [&](std::int64_t end) { return joined(index.pages(end / block * block), packed_whole(head, rest, end / block * block, end)); });
}

/// One build of all tokens up to the last whole block.
std::vector<double> built_whole(const head_rows& head) {
  page_list pages;
  std::int64_t built = 0;
  return shares(head, [&](std::int64_t end) {
    const std::int64_t whole = end / block * block;
    if (whole != built) pages = packed_whole(head, {}, page_sink, built = whole);
    return joined(pages, packed_whole(head, {}, whole, end));
  });
}

/// One build of the tokens before the first position, and blocks from there on.
std::vector<double> grown(const head_rows& head) {
  const std::int64_t start = head.positions.front() / block * block;
  const page_list first = packed_whole(head, {}, page_sink, start);
  const indexed_head index(head, {});
  return shares(head, [&](std::int64_t end) {
    const std::int64_t whole = end / block * block;
    if (whole < start) return joined(packed_whole(head, {}, page_sink, whole), packed_whole(head, {}, whole, end));
    page_list pages = index.pages(whole);
    pages.erase(pages.begin(), pages.begin() + (start - page_sink) / page_tokens);
    return joined(joined(first, pages), packed_whole(head, {}, whole, end));
  });
}

/// At every position, of the whole blocks before it: visit(position, pages).
template <class Visit>
std::vector<double> in_blocks(const head_rows& head, const Visit& visit) {
  const indexed_head index(head, {});
  std::vector<double> result;
  for (std::size_t i = 0; i < head.positions.size(); ++i) {
    const std::int64_t end = (head.positions[i] - page_local) / block * block;
    result.push_back(visit(asked_position(head, i, end), index.pages(end)));
  }
  return result;
}

std::vector<double> best_member(const head_rows& head) {
  return in_blocks(head, [](const asked_position& at, const page_list& pages) { return best_member_share(at, pages); });
}

/// The pages that capture most.
std::vector<double> oracle(const head_rows& head) {
  return in_blocks(head, [](const asked_position& at, const page_list& pages) {
    std::vector<float> scores;
    for (const auto& page : pages) scores.push_back(static_cast<float>(at.share(page)));
    return at.share(tokens_of_best(pages, scores));
  });
}

/// The best member by 4-bit codes, in pages of the index.
std::vector<double> coded_member(const head_rows& head) {
  const coded_keys coded(head.keys, head.dim, {}, balance_of(head, head.pairs), page_tokens);
  return in_blocks(head, [&](const asked_position& at, const page_list& pages) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(at.zone.size()));
    std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(at.zone.begin));
    const auto logits = coded.logits(at.queries, ids);
    return best_member_share(
        at, pages, [&](std::size_t g, std::int32_t t) { return logits[g * ids.size() + static_cast<std::size_t>(t - at.zone.begin)]; });
  });
}

/// What a search of the library captures, or which part of the zone's tokens it takes in inner products.
template <ranking By, bool Cost = false>
std::vector<double> searched_pages(const head_rows& head) {
  const indexed_head index(head, {.rank = By});
  std::vector<double> result;
  for (std::size_t i = 0; i < head.positions.size(); ++i) {
    const std::int64_t end = (head.positions[i] - page_local) / block * block;
    const asked_position at(head, i, end);
    kvx::page_search_result counts;
    const auto tokens = index.search(at.queries, {}, end, {.pages = static_cast<int>(pages_kept)}, counts);
    const auto products = static_cast<double>(counts.keys + counts.means);
    result.push_back(Cost ? products / static_cast<double>(at.zone.size()) : at.share(tokens));
  }
  return result;
}

/// Members over slots of the semantic pages.
std::vector<double> page_fill(const head_rows& head) {
  return in_blocks(head, [](const asked_position&, const page_list& pages) {
    std::size_t members = 0;
    for (const auto& page : pages) members += page.size();
    return static_cast<double>(members) / static_cast<double>(pages.size() * page_tokens);
  });
}

constexpr bool always = false, on_request = true, worst = true;

constexpr auto best_found = searched_pages<ranking::coded_member>;  // by exact keys: every token looked at
constexpr auto found = searched_pages<ranking::mean_then_member>;

const head_metric table[] = {
    {"share_positional", on_request, packed<packing::positional, metric::keys>},
    {"share_positional_mean", on_request, packed<packing::positional, metric::keys, 30, by::mean>},
    {"share_positional_bound", on_request, packed<packing::positional, metric::keys, 30, by::bound>},
    {"share_projection", always, packed<packing::projection, metric::keys, 10>},
    {"share_greedy", on_request, packed<packing::greedy, metric::keys>},
    {"share_bisection", always, packed<packing::bisection, metric::keys>},
    {"share_bisection_metric", always, packed<packing::bisection, metric::diagonal>},
    {"share_bisection_metric_mean", on_request, packed<packing::bisection, metric::diagonal, 30, by::mean>},
    {"share_bisection_metric_bound", on_request, packed<packing::bisection, metric::diagonal, 30, by::bound>},
    {"share_bisection_full_metric", on_request, packed<packing::bisection, metric::full>},
    {"share_bisection_whole", on_request, built_whole},
    {"share_blocks_growth", always, grown, built_whole},
    {"best_member_vs_oracle", always, best_member, oracle},
    {"coded_vs_best", always, coded_member, best_member},
    {"tree_vs_brute", always, found, best_found},
    {"tree_keys_scored", always, searched_pages<ranking::mean_then_member, true>},
    {"needle_worst_head", always, found, best_found, worst},
    {"beam_vs_brute", always, searched_pages<ranking::best_member>, best_found},
    {"beam_keys_scored", always, searched_pages<ranking::best_member, true>},
    {"means_vs_brute", on_request, searched_pages<ranking::mean_key>, best_found},
    {"two_level_vs_brute", on_request, searched_pages<ranking::two_level_means>, best_found},
    {"page_fill", always, page_fill},
};

}  // namespace

std::span<const head_metric> all_page_metrics() { return table; }

}  // namespace quality
