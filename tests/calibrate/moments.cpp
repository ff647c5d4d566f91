// Mean and covariance of a stream equal the definition, however the rows are cut, with a constant part thirty times the rest.

#include <support/calibration_reference.hpp>

#include <kvx/calibrate/moments.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace kvx;

namespace {

row_matrix floats(const reference::matrix& x, std::size_t first, std::size_t rows) {
  row_matrix out(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(x.columns));
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t j = 0; j < x.columns; ++j) {
      out(static_cast<std::int64_t>(t), static_cast<std::int64_t>(j)) = static_cast<float>(x.at(first + t, j));
    }
  }
  return out;
}

void check(const reference::matrix& x, std::size_t chunk, int threads) {
  host exec;
  exec.threads = threads;
  moments m(static_cast<std::int64_t>(x.columns));
  for (std::size_t t = 0; t < x.rows; t += chunk) {
    row_matrix rows = floats(x, t, std::min(chunk, x.rows - t));
    m.add(exec, rows);
  }
  CHECK(m.count() == static_cast<std::int64_t>(x.rows));
  const auto mean = reference::mean(x);
  const auto expected = reference::covariance(x);
  const Eigen::MatrixXf found = m.covariance();
  double off = 0, norm = 0;
  for (std::size_t i = 0; i < x.columns; ++i) {
    CHECK(m.mean()[static_cast<std::int64_t>(i)] == doctest::Approx(mean[i]).epsilon(1e-5));
    for (std::size_t j = 0; j < x.columns; ++j) {
      const double d = static_cast<double>(found(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j))) - expected.at(i, j);
      off += d * d;
      norm += expected.at(i, j) * expected.at(i, j);
    }
  }
  CHECK(std::sqrt(off) <= 1e-5 * std::sqrt(norm));
  CHECK(found == Eigen::MatrixXf(found.transpose()));
}

}  // namespace

TEST_CASE("moments of a stream equal their definition, however it is cut") {
  const auto x = reference::mixed_rows(300, 23, 1, 0, 1);
  for (const std::size_t chunk : {1u, 7u, 64u, 300u}) check(x, chunk, 2);
}

TEST_CASE("a constant part thirty times the rest costs no digits") { check(reference::mixed_rows(400, 12, .5, 30, 2), 50, 1); }

TEST_CASE("more columns than a tile") { check(reference::mixed_rows(60, 401, 1, 1, 3), 32, 2); }

TEST_CASE("nothing seen: zeros; no features: an error") {
  const moments m(3);
  CHECK(m.count() == 0);
  CHECK(m.covariance().isZero());
  CHECK(m.mean().isZero());
  CHECK_THROWS_AS(moments(0), usage_error);
}
