#pragma once
// What a calibration is worth: energies, expected ratios, errors and KL, and what speaks against it, as numbers and as text.

#include <kvx/codec/calibration.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace kvx {

/// "K of layers 0-9", "V of layer 3, heads 2-3", "K of 5 layers from 5" where they do not follow each other.
inline std::string span_name(const feature_span& span, std::int64_t kv_heads, bool is_key) {
  std::string name = is_key ? "K of " : "V of ";
  const std::int32_t first = span.layers.front(), last = span.layers.back();
  const auto count = static_cast<std::int32_t>(span.layers.size());
  if (count == 1) {
    name += "layer " + std::to_string(first);
  } else if (last - first + 1 == count) {
    name += "layers " + std::to_string(first) + "-" + std::to_string(last);
  } else {
    name += std::to_string(count) + " layers from " + std::to_string(first);
  }
  if (span.heads == kv_heads) return name;
  return name + ", heads " + std::to_string(span.first_head) + "-" + std::to_string(span.first_head + span.heads - 1);
}

/// One span's K or V.
///
/// predicted   share of the energy of held-out tokens that the map from tokens takes away
/// captured    share of the rest that the basis holds, in the fit and on held-out tokens
struct span_report {
  std::string name;
  std::int64_t features = 0;
  std::int64_t rank = 0;
  double energy = 0;
  double predicted = 0;
  double captured = 0;
  double captured_held_out = 0;
};

struct calibration_report {
  std::int64_t tokens = 0;
  std::int64_t held_out = 0;
  std::int64_t left_out = 0;  ///< tokens with numbers that are not finite
  std::vector<span_report> spans;
  std::vector<std::string> warnings;
};

/// A report as lines for a person; costs of the calibration at some ratios among them.
inline std::string report_text(const calibration_report& report, const calibration& c,
                               const std::vector<double>& ratios = {12, 16, 20, 27, 35, 42}) {
  std::string text;
  const auto line = [&](const char* format, auto... values) {
    char buffer[256];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
    text += '\n';
  };
  line("%lld tokens fitted, %lld held out, %lld left out for NaN or infinity; %.1f MB of bases, %.1f MB of predictors",
       static_cast<long long>(report.tokens), static_cast<long long>(report.held_out), static_cast<long long>(report.left_out),
       static_cast<double>(c.bytes() - c.predictor_bytes()) / 1e6, static_cast<double>(c.predictor_bytes()) / 1e6);
  line("%-26s %9s %6s %10s %10s %10s", "span", "features", "rank", "predicted", "captured", "held out");
  for (const span_report& s : report.spans) {
    line("%-26s %9lld %6lld %9.1f%% %9.2f%% %9.2f%%", s.name.c_str(), static_cast<long long>(s.features), static_cast<long long>(s.rank),
         100 * s.predicted, 100 * s.captured, 100 * s.captured_held_out);
  }
  if (!c.costs.empty()) {
    line("%8s %12s %12s %12s %12s", "ratio", "step", "error K", "error V", c.weighted ? "expected KL" : "");
    for (const double ratio : ratios) {
      const std::int16_t step = step_for_ratio(c, ratio);
      const step_cost cost = cost_at(c, step);
      if (std::abs(ratio_of(c, cost) / ratio - 1) > .05) continue;  // beyond what was measured
      line(c.weighted ? "%7.1fx %12.3g %12.3g %12.3g %12.3g" : "%7.1fx %12.3g %12.3g %12.3g", ratio_of(c, cost),
           static_cast<double>(power_of_code(step)), static_cast<double>(cost.key_error), static_cast<double>(cost.value_error),
           expected_kl(cost));
    }
  }
  for (const std::string& w : report.warnings) text += "warning: " + w + "\n";
  return text;
}

}  // namespace kvx
