#pragma once
// The basis of one span: covariance, prediction and weights become directions, and held-out rows their coefficients.

#include <kvx/calibrate/moments.hpp>
#include <kvx/calibrate/principal_components.hpp>
#include <kvx/calibrate/step_costs.hpp>
#include <kvx/calibrate/token_regression.hpp>
#include <kvx/codec/bit_plan.hpp>
#include <kvx/codec/calibration.hpp>
#include <kvx/codec/host/packed.hpp>
#include <kvx/codec/level_alphabets.hpp>
#include <kvx/core/element.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// A matrix as rows of half, and what a decoder makes of them.
inline std::vector<half> to_halves(const row_matrix& m) {
  std::vector<half> out(static_cast<std::size_t>(m.size()));
  std::transform(m.data(), m.data() + m.size(), out.begin(), [](float x) { return round_to<half>(x); });
  return out;
}
inline row_matrix from_halves(const std::vector<half>& m, std::int64_t rows, std::int64_t columns) {
  row_matrix out(rows, columns);
  std::transform(m.begin(), m.end(), out.data(), [](half x) { return to_float(x); });
  return out;
}

/// The map of a part (K or V), rounded as it is stored, and the mean of its inputs.
struct part_prediction {
  row_matrix inputs;                                                    // (2 E, r)
  Eigen::MatrixXf kept;                                                 // (r, r)
  Eigen::RowVectorXf mean;                                              // (2 E)
};

/// A basis with what was seen when it was made.
struct fitted_span {
  span_basis basis;
  held_out_coefficients held;
  double energy = 0;                                                    // of centred rows, weighted, a token
  double left = 0;                                                      // of what the prediction leaves
  double captured = 0;                                                  // by the basis, of what is left, in the fit
  double held_before = 0;                                               // of held-out rows, weighted, before the prediction
  double held_energy = 0;                                               // of held-out rows as the basis sees them, a token
};

/// Coefficients of rows under a basis, the rows' prediction taken out before.
///
/// shapes      rows (n, F), overwritten by what is transformed, weighted; inputs (n, r) the rows' inputs times the predictor's, or empty
inline Eigen::MatrixXf coefficients_of(const host& exec, const span_basis& basis, row_matrix& rows, const row_matrix& inputs) {
  if (!basis.outputs.empty()) rows.noalias() -= inputs * from_halves(basis.outputs, inputs.cols(), basis.features());
  rows.rowwise() -= Eigen::Map<const Eigen::RowVectorXf>(basis.mean.data(), basis.features());
  if (!basis.weights.empty()) rows *= Eigen::Map<const Eigen::VectorXf>(basis.weights.data(), basis.features()).asDiagonal();
  const Eigen::MatrixXf directions = from_halves(basis.basis, basis.rank(), basis.features()).transpose();
  return product_of_columns(exec, rows, directions);
}

/// Fits a span.
///
/// shapes      weights (F) or empty; outputs (r, F) of the map or empty; held (n, F), held_inputs (n, r) or empty
/// cost        that of the components
inline fitted_span fit_span(const host& exec, const moments& seen, std::span<const float> weights, const Eigen::MatrixXf& outputs,
                            const part_prediction& prediction, row_matrix held, const row_matrix& held_inputs,
                            const component_search& search, const scale_tables& tables) {
  fitted_span fitted;
  span_basis& basis = fitted.basis;
  basis.weights.assign(weights.begin(), weights.end());
  const Eigen::Map<const Eigen::VectorXf> w(weights.data(), static_cast<std::int64_t>(weights.size()));
  const auto weigh = [&](Eigen::MatrixXf& covariance) {
    if (!weights.empty()) covariance = w.asDiagonal() * covariance * w.asDiagonal();
  };
  Eigen::MatrixXf covariance = seen.covariance();
  Eigen::VectorXd mean = seen.mean();
  Eigen::MatrixXf weighed = covariance;
  weigh(weighed);
  fitted.energy = static_cast<double>(weighed.trace());
  if (outputs.size() > 0) {
    const row_matrix rounded = from_halves(basis.outputs = to_halves(outputs), outputs.rows(), outputs.cols());
    covariance -= product_of_columns(exec, rounded.transpose() * prediction.kept, rounded);
    mean -= (prediction.mean * prediction.inputs * rounded).transpose().cast<double>();
    weighed = covariance;
    weigh(weighed);
  }
  const Eigen::VectorXf as_float = mean.cast<float>();
  basis.mean.assign(as_float.data(), as_float.data() + as_float.size());
  fitted.left = static_cast<double>(weighed.trace());
  const principal_components found = find_components(exec, weighed, search);
  fitted.captured = found.captured();
  basis.basis = to_halves(found.directions.transpose());
  basis.scales.resize(static_cast<std::size_t>(found.variances.size()));
  if (held.rows() > 0) {
    row_matrix centred = held.rowwise() - seen.mean().transpose().cast<float>();
    if (!weights.empty()) centred *= w.asDiagonal();
    fitted.held_before = static_cast<double>(centred.squaredNorm()) / static_cast<double>(held.rows());
    fitted.held.values = coefficients_of(exec, basis, held, held_inputs);
    fitted.held_energy = static_cast<double>(held.squaredNorm()) / static_cast<double>(held.rows());
    fitted.held.dropped =
        std::max(0.0, fitted.held_energy - static_cast<double>(fitted.held.values.squaredNorm()) / static_cast<double>(held.rows()));
  } else {
    fitted.held.dropped = std::max(0.0, fitted.left * (1 - fitted.captured));
  }
  basis.scales = fit_scales(exec, tables, {found.variances.data(), static_cast<std::size_t>(found.variances.size())}, fitted.held);
  return fitted;
}

/// Keeps the first components only.
inline void cut_rank(fitted_span& fitted, std::int64_t rank) {
  span_basis& b = fitted.basis;
  rank = std::clamp<std::int64_t>(rank, 1, b.rank());
  if (rank == b.rank()) return;
  const double cut = fitted.held.values.rows() == 0 ? 0
                                                    : static_cast<double>(fitted.held.values.rightCols(b.rank() - rank).squaredNorm()) /
                                                          static_cast<double>(fitted.held.values.rows());
  fitted.held.dropped += cut;
  if (fitted.held.values.rows() > 0) fitted.held.values = fitted.held.values.leftCols(rank).eval();
  b.scales.resize(static_cast<std::size_t>(rank));
  b.basis.resize(static_cast<std::size_t>(rank * b.features()));
}

/// Costs of steps from the finest at which all bases together spend 6 bits a coefficient or less, to the coarsest at which something is
/// still coded, eight an octave.
inline std::vector<step_cost> measure_steps(const host& exec, const scale_tables& tables, const std::vector<fitted_span>& fitted,
                                            double side_bits) {
  std::vector<step_cost> costs;
  double features = 0, tokens = 0;
  int largest = -(1 << 15);
  for (const fitted_span& f : fitted) {
    features += static_cast<double>(f.basis.features());
    tokens = std::max(tokens, static_cast<double>(f.held.values.rows()));
    for (const component_scale& s : f.basis.scales) largest = std::max<int>(largest, s.log2_scale);
  }
  if (tokens == 0) return costs;
  constexpr int spacing = scale_units / 8;
  for (int step = largest / spacing * spacing; step > largest - 16 * scale_units; step -= spacing) {
    step_cost cost{static_cast<std::int16_t>(step), 0, 0, 0, 0};
    double bits = 0, errors[2] = {};
    for (std::size_t i = 0; i < fitted.size(); ++i) {
      const coded_cost of_span = cost_of_step(exec, tables, fitted[i].basis.scales, fitted[i].held, cost.log2_step);
      bits += of_span.bits;
      errors[i % 2] += of_span.error;
    }
    cost.bits = static_cast<float>(bits);
    cost.key_error = static_cast<float>(errors[0]);
    cost.value_error = static_cast<float>(errors[1]);
    const double ratio = 16 * features / (bits + side_bits);
    if (ratio < 200) costs.push_back(cost);
    if (ratio < 5) break;
  }
  std::reverse(costs.begin(), costs.end());
  return costs;
}

/// The faithful plan of a basis for a nominal ratio, from the first `tokens` held-out coefficients, and alphabets of its levels from all.
inline void make_plan(const host& exec, fitted_span& fitted, double ratio, std::int64_t tokens, call_site where = call_site::here()) {
  span_basis& b = fitted.basis;
  const std::int64_t held = fitted.held.values.rows();
  require(held > 0, "a bit plan is made from held-out tokens", where);
  const measured_run_error error{fitted.held.values.data(), held, static_cast<std::int32_t>(std::min(tokens, held))};
  b.plan = plan_bits(b.rank(), plan_budget(b.features(), ratio), {}, error, where);
  level_counts counts(b.plan);
  const std::int64_t components = b.plan.components();
  std::vector<run_range> ranges(static_cast<std::size_t>(b.plan.stored_runs() * held));
  std::vector<std::int16_t> levels(static_cast<std::size_t>(components * held));
  const component_matrix<const float> coefficients{fitted.held.values.data(), components, static_cast<std::int32_t>(held), held};
  if (!quantise(exec, b.plan, coefficients, {levels.data(), components, static_cast<std::int32_t>(held), held}, ranges, where).ok()) return;
  counts.add({levels.data(), components, static_cast<std::int32_t>(held), held});
  b.levels = counts.frequencies();
}

}  // namespace kvx
