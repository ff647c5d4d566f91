// The table of metrics, and how each is measured.

#include "head_metrics.hpp"

#include "coded_keys.hpp"
#include "head_attention.hpp"

#include <kvx/core/math.hpp>

#include <algorithm>
#include <cmath>
#include <string>

namespace quality {
namespace {

using kvx::bucket_scoring;
using kvx::group_rule;
using kvx::key_sketch;

/// Retrieved tokens that matter.
constexpr std::int64_t best = 128;

/// What is subtracted from every key before it is coded. Only `page` is the library's own; the others are for comparison.
enum class centre { none, first_1024, prompt, page };

/// `pairs`: the two channels of a RoPE pair share one value; `channels`: each has its own.
enum class balance { none, channels, pairs };

/// How the keys of a head are coded.
struct coding {
  centre from = centre::page;
  balance by = balance::pairs;
  bool norms = true;
  int bits = 4;
};

constexpr coding faithful = {centre::none, balance::none, false, 4};
constexpr bucket_scoring mean_query_sums = {bucket_scoring::rule::sign_sum, bucket_scoring::query::mean_query};

/// The keys less the mean of the first `count` ones: the ranking stays as it is.
std::vector<float> centred(const head_rows& head, std::int64_t count) {
  const auto dim = static_cast<std::size_t>(head.dim);
  std::vector<double> mean(dim);
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::size_t d = 0; d < dim; ++d) mean[d] += static_cast<double>(head.key(t)[d]) / static_cast<double>(count);
  }
  std::vector<float> keys = head.keys;
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] -= static_cast<float>(mean[i % dim]);
  return keys;
}

coded_keys encode(const head_rows& head, const coding& how) {
  key_sketch sketch;
  sketch.bits = how.bits;
  sketch.centre = how.from == centre::page;
  sketch.norms = how.norms;
  std::vector<float> a;                                                 // (D) or none
  if (how.by != balance::none) a = balance_of(head, how.by == balance::pairs ? head.pairs : kvx::rope_pairs{});
  if (how.from == centre::first_1024) return {centred(head, 1024), head.dim, sketch, a};
  if (how.from == centre::prompt) return {centred(head, head.positions.front()), head.dim, sketch, a};
  return {head.keys, head.dim, sketch, a};
}

std::span<const float> queries_at(const head_rows& head, std::size_t i) {
  return {head.query(i, 0), static_cast<std::size_t>(head.group * head.dim)};
}

/// Calls visit(i, zone, exact logits) for every query position; returns what it returns.
template <class Visit>
std::vector<double> at_positions(const head_rows& head, const Visit& visit) {
  std::vector<double> result;
  for (std::size_t i = 0; i < head.positions.size(); ++i) result.push_back(visit(i, zone_of(head.positions[i]), exact_logits(head, i)));
  return result;
}

/// Of the mean query's exact best, those among its candidates.
std::vector<double> recall_of_candidates(const head_rows& head, const coding& how, const bucket_scoring& by, double fraction,
                                         double window = 0) {
  const coded_keys coded = encode(head, how);
  return at_positions(head, [&](std::size_t i, const searched& zone, std::span<const float> logits) {
    return recall(exact_best(logits, head.group, zone, best), coded.candidates(queries_at(head, i), zone, by, fraction, window));
  });
}

/// Of the mean query's exact best, those among the best of all keys by their codes.
std::vector<double> recall_of_codes(const head_rows& head, const coding& how) {
  const coded_keys coded = encode(head, how);
  return at_positions(head, [&](std::size_t i, const searched& zone, std::span<const float> logits) {
    return recall(exact_best(logits, head.group, zone, best),
                  coded.best_by_code(queries_at(head, i), zone, {group_rule::kind::mean}, {}, best));
  });
}

/// Attention mass on the residents and the best of all keys by their codes, mean of the group's heads.
double captured(const head_rows& head, const coded_keys& coded, std::size_t i, const searched& zone, std::span<const float> logits,
                group_rule::kind by) {
  const std::size_t seen = logits.size() / static_cast<std::size_t>(head.group);
  std::vector<attention> heads;
  std::vector<float> resident;
  for (std::size_t g = 0; g < static_cast<std::size_t>(head.group); ++g) {
    heads.emplace_back(logits.subspan(g * seen, seen));
    resident.push_back(heads.back().resident(zone));
  }
  const auto kept = coded.best_by_code(queries_at(head, i), zone, {by}, resident, best);
  double mass = 0;
  for (const attention& of : heads) {
    for (const std::int32_t t : kept) mass += of.mass(t);
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(seen); ++t) mass += t < zone.begin || t >= zone.end ? of.mass(t) : 0;
  }
  return mass / head.group;
}

template <group_rule::kind By>
std::vector<double> mass(const head_rows& head) {
  const coded_keys coded = encode(head, {});
  return at_positions(
      head, [&](std::size_t i, const searched& zone, std::span<const float> logits) { return captured(head, coded, i, zone, logits, By); });
}

std::vector<double> rule_gain(const head_rows& head) {
  const coded_keys coded = encode(head, {});
  return at_positions(head, [&](std::size_t i, const searched& zone, std::span<const float> logits) {
    return captured(head, coded, i, zone, logits, group_rule::kind::softmax_sum) -
           captured(head, coded, i, zone, logits, group_rule::kind::mean);
  });
}

/// Sign sums under another centre or balance.
template <int Percent, centre From, balance By>
std::vector<double> sign_sums(const head_rows& head) {
  return recall_of_candidates(head, {.from = From, .by = By}, mean_query_sums, Percent / 100.0);
}

constexpr bool always = false, on_request = true;

const head_metric table[] = {
    {"recall128_votes_10", always, [](const head_rows& h) { return recall_of_candidates(h, faithful, kvx::voting, .10, .30); }},
    {"recall128_signsum_10", always, [](const head_rows& h) { return recall_of_candidates(h, faithful, mean_query_sums, .10); }},
    {"recall128_default_10", always, [](const head_rows& h) { return recall_of_candidates(h, {}, mean_query_sums, .10); }},
    {"recall128_default_5", always, [](const head_rows& h) { return recall_of_candidates(h, {}, mean_query_sums, .05); }},
    {"rerank4_recall128", always, [](const head_rows& h) { return recall_of_codes(h, {.bits = 4}); }},
    {"rerank8_recall128", always, [](const head_rows& h) { return recall_of_codes(h, {.bits = 8}); }},
    {"group_rule_gain", always, rule_gain},
    {"mass128_mean_query", on_request, mass<group_rule::kind::mean>},
    {"mass128_softmax_sum", on_request, mass<group_rule::kind::softmax_sum>},
    {"recall128_votes_window_20", on_request, [](const head_rows& h) { return recall_of_candidates(h, faithful, kvx::voting, .10, .20); }},
    {"recall128_votes_window_50", on_request, [](const head_rows& h) { return recall_of_candidates(h, faithful, kvx::voting, .10, .50); }},
    {"recall128_balance_none_10", on_request, sign_sums<10, centre::page, balance::none>},
    {"recall128_balance_none_5", on_request, sign_sums<5, centre::page, balance::none>},
    {"recall128_balance_channels_10", on_request, sign_sums<10, centre::page, balance::channels>},
    {"recall128_balance_channels_5", on_request, sign_sums<5, centre::page, balance::channels>},
    {"recall128_centre_none", on_request, sign_sums<10, centre::none, balance::none>},
    {"recall128_centre_first", on_request, sign_sums<10, centre::first_1024, balance::none>},
    {"recall128_centre_prompt", on_request, sign_sums<10, centre::prompt, balance::none>},
    {"recall128_centre_page", on_request, sign_sums<10, centre::page, balance::none>},
    {"recall128_centre_none_balanced", on_request, sign_sums<10, centre::none, balance::pairs>},
    {"recall128_centre_first_balanced", on_request, sign_sums<10, centre::first_1024, balance::pairs>},
    {"recall128_centre_prompt_balanced", on_request, sign_sums<10, centre::prompt, balance::pairs>},
};

}  // namespace

std::span<const head_metric> all_head_metrics() { return table; }

bool wanted(const head_metric& candidate, std::string_view filter) {
  return filter.empty() ? !candidate.on_request : candidate.name.find(filter) != std::string_view::npos;
}

namespace {

/// A measure of every head.   (heads) of (positions)
std::vector<std::vector<double>> of_heads(const kvx::host& exec, std::vector<double> (*measure)(const head_rows&),
                                          std::span<const head_rows> heads) {
  std::vector<std::vector<double>> by_head(heads.size());
  kvx::for_each_task(exec, static_cast<std::int64_t>(heads.size()),
                     [&](std::int64_t h) { by_head[static_cast<std::size_t>(h)] = measure(heads[static_cast<std::size_t>(h)]); });
  return by_head;
}

std::vector<double> mean_of_heads(std::span<const std::vector<double>> by_head) {
  std::vector<double> mean(by_head.front().size());
  for (const auto& values : by_head) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / static_cast<double>(by_head.size());
  }
  return mean;
}

}  // namespace

std::vector<double> mean_over(const kvx::host& exec, const head_metric& metric, std::span<const head_rows> heads) {
  return mean_of_heads(of_heads(exec, metric.measure, heads));
}

summary summary_of(const kvx::host& exec, const head_metric& metric, std::span<const head_rows> heads) {
  const auto above = of_heads(exec, metric.measure, heads);
  if (metric.over == nullptr) return summarise(mean_of_heads(above));
  const auto below = of_heads(exec, metric.over, heads);
  if (!metric.worst) return quotient_of(mean_of_heads(above), mean_of_heads(below));
  summary worst{1e300, 0, 1e300};
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const summary of_head = quotient_of(above[h], below[h]);
    if (summarise(below[h]).mean >= .3 && of_head.mean < worst.mean) worst = of_head;
  }
  return worst;
}

}  // namespace quality
