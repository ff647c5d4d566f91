// Principal components equal Jacobi's eigenvalues, are orthonormal to 1e-5, and by sampling hold as much within 1 %.

#include <support/calibration_reference.hpp>

#include <kvx/calibrate/principal_components.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

using namespace kvx;

namespace {

Eigen::MatrixXf floats(const reference::matrix& x) {
  Eigen::MatrixXf out(static_cast<std::int64_t>(x.rows), static_cast<std::int64_t>(x.columns));
  for (std::size_t i = 0; i < x.rows; ++i) {
    for (std::size_t j = 0; j < x.columns; ++j)
      out(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)) = static_cast<float>(x.at(i, j));
  }
  return out;
}

float off_orthonormal(const Eigen::MatrixXf& directions) {
  const auto d = directions.cast<double>();
  return static_cast<float>((d.transpose() * d - Eigen::MatrixXd::Identity(d.cols(), d.cols())).cwiseAbs().maxCoeff());
}

/// A covariance whose variances fall like i^-decay, in random directions.
Eigen::MatrixXf falling(std::int64_t n, double decay) {
  host exec;
  Eigen::MatrixXf start = Eigen::MatrixXf::Random(n, n);
  const Eigen::MatrixXf q = orthonormal(start);
  Eigen::VectorXf variances(n);
  for (std::int64_t i = 0; i < n; ++i) variances[i] = static_cast<float>(std::pow(static_cast<double>(i + 1), -decay));
  return product_of_columns(exec, q * variances.asDiagonal(), q.transpose());
}

}  // namespace

TEST_CASE("variances are the eigenvalues, directions their vectors") {
  const auto c = reference::covariance(reference::mixed_rows(200, 17, 1, 3, 5));
  const auto expected = reference::eigenvalues(c);
  const auto found = find_components(host{}, floats(c));
  REQUIRE(found.variances.size() == 17);
  double total = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(static_cast<double>(found.variances[static_cast<std::int64_t>(i)]) == doctest::Approx(expected[i]).epsilon(1e-4));
    total += expected[i];
  }
  CHECK(found.total == doctest::Approx(total));
  CHECK(off_orthonormal(found.directions) < 1e-5f);
  const Eigen::MatrixXf residual = floats(c) * found.directions - found.directions * found.variances.asDiagonal();
  CHECK(residual.cwiseAbs().maxCoeff() < 1e-4f * found.variances[0]);
}

TEST_CASE("a basis of many directions is orthonormal to 1e-5") {
  CHECK(off_orthonormal(find_components(host{}, falling(500, 1.5)).directions) < 1e-5f);
}

TEST_CASE("sampled components hold what the exact ones hold, within 1 %") {
  for (const double decay : {1.0, 1.5, 2.0}) {
    const Eigen::MatrixXf c = falling(400, decay);
    const auto exact = find_components(host{}, c, {.rank = 60});
    const auto sampled = find_components(host{}, c, {.rank = 60, .exact_up_to = 100});
    CHECK(sampled.variances.size() == 60);
    CHECK(sampled.captured() >= .99 * exact.captured());
    CHECK(sampled.captured() <= exact.captured() * 1.0001);
    CHECK(off_orthonormal(sampled.directions) < 1e-5f);
    CHECK(exact.captured() > .5);
  }
}

TEST_CASE("constant data, one feature, the same signs every time") {
  const auto none = find_components(host{}, Eigen::MatrixXf::Zero(5, 5));
  CHECK(none.captured() == 1);
  CHECK(off_orthonormal(none.directions) < 1e-5f);
  const auto one = find_components(host{}, Eigen::MatrixXf::Constant(1, 1, 4));
  CHECK(one.directions(0, 0) == 1);
  CHECK(one.variances[0] == 4);
  const Eigen::MatrixXf c = falling(30, 1);
  const auto found = find_components(host{}, c);
  for (Eigen::Index i = 0; i < 30; ++i) {
    Eigen::Index at = 0;
    found.directions.col(i).cwiseAbs().maxCoeff(&at);
    CHECK(found.directions(at, i) > 0);
  }
}

TEST_CASE("what is not a covariance is refused") {
  CHECK_THROWS_AS(find_components(host{}, Eigen::MatrixXf::Zero(2, 3)), usage_error);
  CHECK_THROWS_AS(find_components(host{}, Eigen::MatrixXf::Zero(3, 3), {.rank = 4}), usage_error);
  Eigen::MatrixXf c = Eigen::MatrixXf::Identity(2, 2);
  c(0, 1) = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_AS(find_components(host{}, c), usage_error);
}
