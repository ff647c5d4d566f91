// Ridge regression by normal equations finds a planted map, and its formula for what is left equals the covariance of what is left.

#include <support/calibration_reference.hpp>

#include <kvx/calibrate/token_regression.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>

using namespace kvx;

namespace {

constexpr std::int64_t inputs = 12, outputs = 30, rows = 4000;

struct world {
  row_matrix z = row_matrix(rows, inputs), y = row_matrix(rows, outputs), map = row_matrix(inputs, outputs);

  /// A map of rank `rank` with noise beside it, about means of their own.
  world(std::int64_t rank, float noise, float mean) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const auto filled = [&](std::int64_t r, std::int64_t c) {
      row_matrix m(r, c);
      for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = normal(random);
      return m;
    };
    z = filled(rows, inputs);
    map = filled(inputs, rank) * filled(rank, outputs);
    y = z * map + noise * filled(rows, outputs);
    z.array() += mean;
    y.array() -= 3 * mean;
  }
};

struct fitted {
  regression_map map;
  row_matrix left;                                                      // (rows, F) centred
  Eigen::MatrixXf formula;                                              // what the map says of its covariance
};

fitted fit(const world& w, std::int64_t rank, double ridge, std::span<const float> weights, std::int64_t chunk) {
  host exec;
  moments of_z(inputs), of_y(outputs);
  token_regression regression(inputs, outputs);
  for (std::int64_t t = 0; t < rows; t += chunk) {
    const std::int64_t n = std::min(chunk, rows - t);
    row_matrix z = w.z.middleRows(t, n), y = w.y.middleRows(t, n);
    of_z.add(exec, z);
    of_y.add(exec, y);
    for (std::int64_t first = 0; first < outputs; first += 10) regression.add(exec, z, y.middleCols(first, 10), first);
  }
  fitted f;
  f.map = regression.fit(exec, of_z, of_y.shifted_mean(), weights, rank, ridge);
  row_matrix z = w.z.rowwise() - of_z.mean().transpose().cast<float>();
  f.left = (w.y.rowwise() - of_y.mean().transpose().cast<float>()) - z * f.map.inputs * f.map.outputs;
  f.formula = of_y.covariance() - f.map.outputs.transpose() * f.map.kept * f.map.outputs;
  return f;
}

float difference(const Eigen::MatrixXf& a, const Eigen::MatrixXf& b) { return (a - b).norm() / b.norm(); }

}  // namespace

TEST_CASE("a planted map of low rank is found, whatever the chunks and means") {
  for (const float mean : {0.f, 5.f}) {
    const world w(3, .01f, mean);
    for (const std::int64_t chunk : {257, 4000}) {
      const fitted f = fit(w, 3, 1e-5, {}, chunk);
      CHECK(difference(f.map.inputs * f.map.outputs, w.map) < .01f);
    }
  }
}

TEST_CASE("what is left has the covariance that the map says, at any ridge and rank") {
  const world w(8, 1, 1);
  for (const std::int64_t rank : {1, 4, 12}) {
    for (const double ridge : {1e-4, .1, 2.0}) {
      const fitted f = fit(w, rank, ridge, {}, 500);
      const Eigen::MatrixXf measured = f.left.transpose() * f.left / static_cast<float>(rows);
      CHECK(difference(f.formula, measured) < 2e-3f);
    }
  }
}

TEST_CASE("more rank leaves less, and weights decide for whom") {
  const world w(8, .1f, 0);
  double before = 1e30;
  for (const std::int64_t rank : {1, 2, 4, 8}) {
    const double left = fit(w, rank, 1e-4, {}, 1000).left.squaredNorm();
    CHECK(left < before);
    before = left;
  }
  std::vector<float> weights(outputs, .01f);
  for (std::size_t i = 0; i < 5; ++i) weights[i] = 10;
  const double plain = fit(w, 2, 1e-4, {}, 1000).left.leftCols(5).squaredNorm();
  const double weighted = fit(w, 2, 1e-4, weights, 1000).left.leftCols(5).squaredNorm();
  CHECK(weighted < .9 * plain);
}

TEST_CASE("constant inputs predict nothing and break nothing") {
  world w(2, 1, 0);
  w.z.setConstant(4);
  const fitted f = fit(w, 2, .1, {}, 500);
  CHECK((f.map.inputs * f.map.outputs).allFinite());
  CHECK(difference(f.left, w.y.rowwise() - w.y.colwise().mean()) < 1e-4f);
}

TEST_CASE("what does not fit is refused") {
  CHECK_THROWS_AS(token_regression(0, 1), usage_error);
  const token_regression regression(2, 3);
  const moments z(2);
  CHECK_THROWS_AS(regression.fit(host{}, z, Eigen::VectorXd::Zero(3), {}, 1, .1), usage_error);
}
