#pragma once
// Ridge regression of rows on token embeddings by normal equations that grow with the features only, and its best map of a given rank.

#include <kvx/calibrate/moments.hpp>
#include <kvx/calibrate/principal_components.hpp>

#include <Eigen/Cholesky>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// A fitted map, and what it leaves.
///
/// what        a centred row y is predicted as z^T inputs outputs; the covariance of what is left is Cov y - outputs^T kept outputs
/// shapes      inputs (G, r), outputs (r, F), kept (r, r)
struct regression_map {
  Eigen::MatrixXf inputs;
  Eigen::MatrixXf outputs;
  Eigen::MatrixXf kept;
};

/// Normal equations of F outputs on G inputs.
///
/// shapes      z (n, G), y (n, F), each shifted by moments of its own
/// cost        n G F multiply-adds; 4 G (G + F) bytes: 58 MB for 1,152 inputs and 11,520 outputs
class token_regression {
 public:
  token_regression(std::int64_t inputs, std::int64_t outputs, call_site where = call_site::here()) {
    require_range("inputs", inputs, 1, 1 << 20, where);
    require_range("outputs", outputs, 1, 1 << 22, where);
    products_ = Eigen::MatrixXf::Zero(inputs, outputs);
  }

  std::int64_t inputs() const { return products_.rows(); }
  std::int64_t outputs() const { return products_.cols(); }

  /// Adds the outputs [first, first + y.cols()) of some rows, both shifted already.
  void add(const host& exec, const row_matrix& z, const row_matrix& y, std::int64_t first) {
    Eigen::MatrixXf sums = Eigen::MatrixXf::Zero(z.cols(), y.cols());
    add_products(exec, z, y, false, sums);
    products_.middleCols(first, y.cols()) += sums;
  }

  /// The map of least squared error of its rank, features scaled by their weights.
  ///
  /// what        with L L^T = Cov z + ridge trace / G and A = L^-1 Cov(z, y): the leading directions U of A W (W the weights), inputs
  ///             L^-T U, outputs U^T A
  /// shapes      z: moments of the inputs; shifted_mean (F) of y about its shift; weights (F) or empty
  /// cost        G^3 / 3 + 2 G^2 F multiply-adds, and an eigendecomposition of G^2
  /// source      reduced-rank regression, Izenman 1975
  regression_map fit(const host& exec, const moments& z, const Eigen::VectorXd& shifted_mean, std::span<const float> weights,
                     std::int64_t rank, double ridge, call_site where = call_site::here()) const {
    require(z.count() > 1 && z.features() == inputs(), "token_regression: moments of the inputs, of two rows or more", where);
    require(shifted_mean.size() == outputs(), "token_regression: a mean an output", where);
    require(weights.empty() || static_cast<std::int64_t>(weights.size()) == outputs(), "token_regression: a weight an output", where);
    require_range("rank of the predictor", rank, 1, std::min(inputs(), outputs()), where);
    const auto rows = static_cast<float>(z.count());
    Eigen::MatrixXf spread = z.covariance();
    const double lambda = std::max(ridge, 1e-6) * static_cast<double>(spread.trace()) / static_cast<double>(inputs());
    spread.diagonal().array() += static_cast<float>(std::max(lambda, 1e-20));
    const Eigen::LLT<Eigen::MatrixXf> factor(spread);
    Eigen::MatrixXf white = products_ / rows - z.shifted_mean().cast<float>() * shifted_mean.cast<float>().transpose();
    for_each_task(exec, (outputs() + moment_tile - 1) / moment_tile, [&](std::int64_t i) {
      auto part = white.middleCols(i * moment_tile, std::min(moment_tile, outputs() - i * moment_tile));
      factor.matrixL().solveInPlace(part);
    });
    Eigen::MatrixXf scaled = white;
    if (!weights.empty()) scaled *= Eigen::Map<const Eigen::VectorXf>(weights.data(), outputs()).asDiagonal();
    Eigen::MatrixXf energy = Eigen::MatrixXf::Zero(inputs(), inputs());
    const row_matrix columns = scaled.transpose();
    add_products(exec, columns, columns, true, energy);
    energy.template triangularView<Eigen::StrictlyUpper>() = energy.transpose();
    const principal_components leading = find_components(exec, energy, {.rank = rank});
    regression_map map;
    map.outputs = product_of_columns(exec, leading.directions.transpose(), white);
    map.inputs = leading.directions;
    factor.matrixU().solveInPlace(map.inputs);
    map.kept = Eigen::MatrixXf::Identity(rank, rank);
    map.kept.noalias() += static_cast<float>(lambda) * (map.inputs.transpose() * map.inputs);
    return map;
  }

 private:
  Eigen::MatrixXf products_;                                            // (G, F) of shifted rows
};

}  // namespace kvx
