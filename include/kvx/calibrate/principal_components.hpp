#pragma once
// The directions of most variance of a covariance: all of them, or the first ones by random projections where all are too many.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/random.hpp>

#include <Eigen/Eigenvalues>
#include <Eigen/QR>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvx {

/// Orthonormal directions and the variance along each, descending.
struct principal_components {
  Eigen::MatrixXf directions;                                           // (F, r), a direction a column
  Eigen::VectorXf variances;                                            // (r)
  double total = 0;                                                     // variance of all F: the trace

  /// Share of the variance that the directions hold.
  double captured() const { return total > 0 ? static_cast<double>(variances.cast<double>().sum()) / total : 1; }
};

/// How they are found.
///
/// rank        directions wanted, 0: all
/// exact_up_to features up to which all are computed; beyond, and with a rank below two thirds of the features, random projections find
///             the first ones
/// rounds      multiplications with the covariance: each squares the gap between wanted and unwanted directions
struct component_search {
  std::int64_t rank = 0;
  std::int64_t exact_up_to = 2048;
  int rounds = 3;
  std::uint64_t seed = 1;
};

/// a b, columns of b apart, on the threads of `exec`.
inline Eigen::MatrixXf product_of_columns(const host& exec, const Eigen::MatrixXf& a, const Eigen::MatrixXf& b) {
  constexpr std::int64_t tile = 128;
  Eigen::MatrixXf out(a.rows(), b.cols());
  for_each_task(exec, (b.cols() + tile - 1) / tile, [&](std::int64_t i) {
    const std::int64_t columns = std::min(tile, b.cols() - i * tile);
    out.middleCols(i * tile, columns).noalias() = a * b.middleCols(i * tile, columns);
  });
  return out;
}

/// The first columns of the orthogonal factor: an orthonormal basis of what the columns span.
inline Eigen::MatrixXf orthonormal(const Eigen::MatrixXf& a) {
  const Eigen::HouseholderQR<Eigen::MatrixXf> factors(a);
  return factors.householderQ() * Eigen::MatrixXf::Identity(a.rows(), a.cols());
}

/// Takes out what rounding left of the angles between directions: one step of Newton's iteration for the polar factor, which squares
/// the deviation from orthonormal.
inline void polish(const host& exec, Eigen::MatrixXf& directions) {
  Eigen::MatrixXf step = product_of_columns(exec, directions.transpose(), directions) * -0.5F;
  step.diagonal().array() += 1.5F;
  directions = product_of_columns(exec, directions, step);
}

/// Each direction's largest component is positive, so that equal data gives equal signs.
inline void fix_signs(Eigen::MatrixXf& directions) {
  for (Eigen::Index c = 0; c < directions.cols(); ++c) {
    Eigen::Index largest = 0;
    directions.col(c).cwiseAbs().maxCoeff(&largest);
    if (directions(largest, c) < 0) directions.col(c) *= -1;
  }
}

/// All directions by an eigendecomposition, the first `rank` of them kept.
inline principal_components exact_components(const Eigen::MatrixXf& covariance, std::int64_t rank) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXf> solver(covariance);
  principal_components found;
  found.directions = solver.eigenvectors().rowwise().reverse().leftCols(rank);
  found.variances = solver.eigenvalues().reverse().head(rank).cwiseMax(0.0F);
  return found;
}

/// The first `rank` directions by subspace iteration from random vectors, a quarter more than wanted, and the eigendecomposition inside
/// the subspace.
///
/// exactness   captures what the exact ones capture within 1 % where the variance falls like i^-1 or faster
/// cost        2 (rounds + 1) F^2 1.25 r multiply-adds, and QR and eigendecomposition of 1.25 r columns
/// source      Halko, Martinsson, Tropp 2011, algorithms 4.4 and 5.3
inline principal_components sampled_components(const host& exec, const Eigen::MatrixXf& covariance, std::int64_t rank,
                                               const component_search& how) {
  const std::int64_t sampled = std::min<std::int64_t>(covariance.rows(), rank + std::max<std::int64_t>(16, rank / 4));
  Eigen::MatrixXf start(covariance.rows(), sampled);
  for (Eigen::Index i = 0; i < start.size(); ++i) {
    start.data()[i] =
        static_cast<float>(static_cast<std::int64_t>(random_bits(how.seed, static_cast<std::uint64_t>(i)) >> 40) - (1 << 23)) * 0x1p-23F;
  }
  Eigen::MatrixXf basis = orthonormal(start);
  for (int round = 0; round < how.rounds; ++round) basis = orthonormal(product_of_columns(exec, covariance, basis));
  const Eigen::MatrixXf image = product_of_columns(exec, covariance, basis);
  const Eigen::MatrixXf small = product_of_columns(exec, basis.transpose(), image);
  principal_components found = exact_components((small + small.transpose()) / 2, rank);
  found.directions = product_of_columns(exec, basis, found.directions);
  return found;
}

/// Principal components of a covariance.
///
/// shapes      covariance (F, F), symmetric, without negative eigenvalues but for rounding
/// exactness   directions orthonormal to 1e-5; signs fixed
/// cost        exact: about 10 F^3 operations, a quarter of a minute a core for 1,920 features
/// errors      usage_error: not square, a rank beyond the features, or numbers that are not finite
inline principal_components find_components(const host& exec, const Eigen::MatrixXf& covariance, const component_search& how = {},
                                            call_site where = call_site::here()) {
  require(covariance.rows() == covariance.cols() && covariance.rows() > 0, "find_components: the covariance is square and not empty",
          where);
  require_range("find_components: rank", how.rank, 0, covariance.rows(), where);
  require(covariance.allFinite(), "find_components: the covariance is finite", where);
  const std::int64_t rank = how.rank == 0 ? covariance.rows() : how.rank;
  const bool all = covariance.rows() <= how.exact_up_to || 3 * rank > 2 * covariance.rows();
  principal_components found = all ? exact_components(covariance, rank) : sampled_components(exec, covariance, rank, how);
  found.total = static_cast<double>(covariance.diagonal().cast<double>().sum());
  polish(exec, found.directions);
  fix_signs(found.directions);
  return found;
}

}  // namespace kvx
