#pragma once
// Whether a calibration still fits: mean and spread of coefficients on new rows, and what coding them costs beside what was expected.

#include <kvx/calibrate/report.hpp>
#include <kvx/calibrate/span_fit.hpp>
#include <kvx/calibrate/step_costs.hpp>
#include <kvx/codec/calibration.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace kvx {

/// New rows of tokens, all layers of each.
///
/// shapes      keys (n, L, H, D) before RoPE, values (n, L, H, Dv); inputs (n, 2 E) normed embeddings, empty without a predictor
struct new_rows {
  std::span<const float> keys;
  std::span<const float> values;
  std::span<const float> inputs = {};
};

/// Of K or V of one span, over the components that are kept.
///
/// shift       root mean square of a component's mean over its scale: 0 where the calibration's mean still holds
/// spread      root mean square of log2 of a component's deviation over its scale: 0 where scales still hold
struct span_drift {
  double shift = 0;
  double spread = 0;
};

/// The same for all spans, K and V of each, and what a step costs now.
///
/// bits, error     on the new rows over what the calibration expects, at its middle step: 1 where nothing has drifted
struct drift_report {
  std::vector<span_drift> keys, values;
  double bits = 1;
  double error = 1;
};

/// Compares.
///
/// errors      usage_error: shapes, fewer than two tokens, a calibration without costs
inline drift_report measure_drift(const host& exec, const calibration& c, const new_rows& rows, call_site where = call_site::here()) {
  const std::int64_t count = static_cast<std::int64_t>(rows.keys.size()) / c.shape.key_features();
  require(count >= 2 && static_cast<std::int64_t>(rows.keys.size()) == count * c.shape.key_features() &&
              static_cast<std::int64_t>(rows.values.size()) == count * c.shape.value_features(),
          "measure_drift: keys are (n, L, H, D) and values (n, L, H, Dv) of two tokens or more", where);
  for (const token_predictor* p : {&c.key_predictor, &c.value_predictor})
    require(p->empty() || static_cast<std::int64_t>(rows.inputs.size()) == count * 2 * p->embedding,
            "measure_drift: inputs of the predictor, (n, 2 E)", where);
  require(!c.costs.empty(), "measure_drift: the calibration holds costs of steps", where);
  const scale_tables tables(c.rounding);
  const step_cost expected = c.costs[c.costs.size() / 2];
  drift_report report;
  double bits = 0, error = 0;
  for (const bool is_key : {true, false}) {
    const token_predictor& predictor = is_key ? c.key_predictor : c.value_predictor;
    const std::int64_t dim = is_key ? c.shape.key_dim : c.shape.value_dim, width = c.shape.layers * c.shape.kv_heads * dim;
    row_matrix inputs;
    if (!predictor.empty()) {
      inputs = Eigen::Map<const row_matrix>(rows.inputs.data(), count, 2 * predictor.embedding) *
               from_halves(predictor.inputs, 2 * predictor.embedding, predictor.rank);
    }
    for (std::size_t s = 0; s < c.spans.size(); ++s) {
      const span_basis& basis = (is_key ? c.keys : c.values)[s];
      row_matrix x(count, basis.features());
      const float* const from = (is_key ? rows.keys : rows.values).data();
      for (std::int64_t t = 0; t < count; ++t) gather_features(c.spans[s], from + t * width, c.shape.kv_heads, dim, x.row(t).data());
      held_out_coefficients fresh;
      fresh.values = coefficients_of(exec, basis, x, inputs);
      fresh.dropped = std::max(0.0, static_cast<double>(x.squaredNorm() - fresh.values.squaredNorm()) / static_cast<double>(count));
      const coded_cost cost = cost_of_step(exec, tables, basis.scales, fresh, expected.log2_step);
      bits += cost.bits;
      error += cost.error;
      span_drift drift;
      for (std::int64_t i = 0; i < basis.rank(); ++i) {
        const auto column = fresh.values.col(i).cast<double>();
        const double scale = static_cast<double>(power_of_code(basis.scales[static_cast<std::size_t>(i)].log2_scale));
        const double mean = column.mean();
        const double deviation = std::sqrt((column.array() - mean).square().mean());
        const double shift = mean / scale, spread = std::log2(std::max(deviation / scale, 1e-6));
        drift.shift += shift * shift / static_cast<double>(basis.rank());
        drift.spread += spread * spread / static_cast<double>(basis.rank());
      }
      (is_key ? report.keys : report.values).push_back({std::sqrt(drift.shift), std::sqrt(drift.spread)});
    }
  }
  report.bits = expected.bits > 0 ? bits / static_cast<double>(expected.bits) : 1;
  const double usual = static_cast<double>(expected.key_error) + static_cast<double>(expected.value_error);
  report.error = usual > 0 ? error / usual : 1;
  return report;
}

/// A drift as lines for a person.
inline std::string drift_text(const drift_report& report, const calibration& c) {
  std::string text;
  const auto line = [&](const char* format, auto... values) {
    char buffer[160];
    std::snprintf(buffer, sizeof buffer, format, values...);
    text += buffer;
  };
  line("%-26s %8s %8s\n", "span", "shift", "spread");
  for (std::size_t s = 0; s < c.spans.size(); ++s) {
    for (const bool is_key : {true, false}) {
      const span_drift& drift = (is_key ? report.keys : report.values)[s];
      line("%-26s %8.3f %8.3f\n", span_name(c.spans[s], c.shape.kv_heads, is_key).c_str(), drift.shift, drift.spread);
    }
  }
  line("At a step of %.3g: %.2f times the bits and %.2f times the error that calibration expected.\n",
       static_cast<double>(power_of_code(c.costs[c.costs.size() / 2].log2_step)), report.bits, report.error);
  return text;
}

}  // namespace kvx
