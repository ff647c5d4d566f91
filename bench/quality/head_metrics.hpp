#pragma once
// The registry of what is measured on each head of a model: the keys that a search finds among those that matter.

#include "head_rows.hpp"

#include <kvx/backend/host.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace quality {

/// One number for each query position of a head. A new metric is one line of the table in head_metrics.cpp.
struct head_metric {
  std::string_view name;
  bool on_request = false;                                              // measured only where a filter names it
  std::vector<double> (*measure)(const head_rows& head);                // (positions)
};

std::span<const head_metric> all_head_metrics();

/// Whether a filter asks for the metric: an empty one for all but those on request, another for names that contain it.
bool wanted(const head_metric& candidate, std::string_view filter);

/// Mean of a metric over heads, at each position.   (positions)
std::vector<double> mean_over(const kvx::host& exec, const head_metric& metric, std::span<const head_rows> heads);

}  // namespace quality
