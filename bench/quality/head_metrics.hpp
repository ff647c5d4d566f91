#pragma once
// The registry of what is measured on each head of a model: the keys that a search finds among those that matter.

#include "head_rows.hpp"
#include "scores.hpp"

#include <kvx/backend/host.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace quality {

/// One number for each query position of a head. A new metric is one line of a table in head_metrics.cpp or page_metrics.cpp.
///
/// over        the metric is a quotient: the mean of `measure` over that of `over`
/// worst       not of all heads: of the one where the quotient is smallest, among those where `over` is at least .3
struct head_metric {
  std::string_view name;
  bool on_request = false;                                              // measured only where a filter names it
  std::vector<double> (*measure)(const head_rows& head);                // (positions)
  std::vector<double> (*over)(const head_rows& head) = nullptr;         // (positions)
  bool worst = false;
};

std::span<const head_metric> all_head_metrics();

/// How pages of similar tokens are packed and found.
std::span<const head_metric> all_page_metrics();

/// Whether a filter asks for the metric: an empty one for all but those on request, another for names that contain it.
bool wanted(const head_metric& candidate, std::string_view filter);

/// What is printed of a metric.
summary summary_of(const kvx::host& exec, const head_metric& metric, std::span<const head_rows> heads);

/// Mean of a metric over heads, at each position.   (positions)
std::vector<double> mean_over(const kvx::host& exec, const head_metric& metric, std::span<const head_rows> heads);

}  // namespace quality
