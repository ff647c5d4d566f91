// Projection to a basis and back: equal to sums in double, whole or feature by feature, for any number of threads; NaN is seen.

#include <support/thread_pool.hpp>

#include <kvx/transform/host/pca.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace kvx;
using kvx::test::std_threads;

namespace {

struct basis_case {
  std::int64_t features, rank;
  std::vector<float> mean, weights;
  std::vector<half> basis;

  basis_case(std::int64_t f, std::int64_t r, unsigned seed) : features(f), rank(r) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < f; ++i) {
      mean.push_back(10 * normal(random));
      weights.push_back(std::exp(normal(random)));
    }
    // Orthonormal rows by Gram and Schmidt, then rounded.
    std::vector<std::vector<double>> rows;
    while (static_cast<std::int64_t>(rows.size()) < r) {
      std::vector<double> x(static_cast<std::size_t>(f));
      for (auto& v : x) v = normal(random);
      for (const auto& y : rows) {
        double dot = 0;
        for (std::size_t i = 0; i < x.size(); ++i) dot += x[i] * y[i];
        for (std::size_t i = 0; i < x.size(); ++i) x[i] -= dot * y[i];
      }
      double norm = 0;
      for (const double v : x) norm += v * v;
      for (auto& v : x) v /= std::sqrt(norm);
      rows.push_back(x);
    }
    for (const auto& x : rows) {
      for (const double v : x) basis.push_back(round_to<half>(static_cast<float>(v)));
    }
  }
  pca_basis view(bool weighted) const { return {features, rank, mean.data(), weighted ? weights.data() : nullptr, basis.data()}; }
  double at(std::int64_t c, std::int64_t f) const { return to_float(basis[static_cast<std::size_t>(c * features + f)]); }
};

std::vector<float> random_rows(std::int64_t tokens, std::int64_t pitch, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(tokens * pitch));
  for (auto& x : rows) x = 5 * normal(random);
  return rows;
}

}  // namespace

TEST_CASE("projection and restoration equal sums in double") {
  for (const std::int64_t features : {1, 2, 63, 130, 300, 900}) {
    for (const std::int64_t rank : {std::int64_t{1}, features / 2, features}) {
      if (rank > 300) continue;
      for (const std::int64_t tokens : {1, 5, 40}) {
        for (const bool weighted : {false, true}) {
          if (rank == 0) continue;
          const basis_case b(features, rank, 3);
          const std::int64_t pitch = tokens + 3, row_pitch = features + 5, components = rank - rank / 3;
          std::vector<float> rows = random_rows(tokens, row_pitch, 4);
          tensor_view<float, 2> view(rows.data(), tokens, features);
          view.strides[0] = row_pitch;
          std::vector<float> y(static_cast<std::size_t>(rank * pitch), 99);
          CAPTURE(features);
          CAPTURE(rank);
          REQUIRE(pca_project(host{}, plain_products(), b.view(weighted), view, components, y.data(), pitch));
          double worst = 0;
          for (std::int64_t c = 0; c < components; ++c) {
            for (std::int64_t t = 0; t < tokens; ++t) {
              double sum = 0;
              for (std::int64_t f = 0; f < features; ++f) {
                const auto i = static_cast<std::size_t>(f);
                sum += b.at(c, f) * (*view.at(t, f) - static_cast<double>(b.mean[i])) * (weighted ? b.weights[i] : 1);
              }
              worst = std::max(worst, std::fabs(sum - y[static_cast<std::size_t>(c * pitch + t)]));
            }
            CHECK(y[static_cast<std::size_t>(c * pitch + tokens)] == 99);
          }
          CHECK(worst < 2e-3);
          std::vector<float> back(rows.size(), 77);
          tensor_view<float, 2> restored(back.data(), tokens, features);
          restored.strides[0] = row_pitch;
          pca_restore(host{}, plain_products(), b.view(weighted), y.data(), pitch, components, 0, restored);
          worst = 0;
          for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t f = 0; f < features; ++f) {
              double sum = 0;
              for (std::int64_t c = 0; c < components; ++c) sum += b.at(c, f) * y[static_cast<std::size_t>(c * pitch + t)];
              const auto i = static_cast<std::size_t>(f);
              const double expected = b.mean[i] + (weighted ? sum / b.weights[i] : sum);
              worst = std::max(worst, std::fabs(expected - *restored.at(t, f)) / (1 + std::fabs(expected)));
            }
          }
          CHECK(worst < 1e-4);
          CHECK(back[static_cast<std::size_t>(features)] == 77);
        }
      }
    }
  }
}

TEST_CASE("a full basis gives rows back, and features may be restored in any pieces, to the same bits") {
  const basis_case b(200, 200, 5);
  const std::vector<float> rows = random_rows(33, 200, 6);
  std::vector<float> y(200 * 33), whole(rows.size()), pieces(rows.size());
  REQUIRE(pca_project(host{.threads = 1}, plain_products(), b.view(true), tensor_view<const float, 2>(rows.data(), 33, 200), 200, y.data(),
                      33));
  std::vector<float> again(y.size());
  REQUIRE(pca_project(host{.threads = 3, .parallel = std_threads()}, plain_products(), b.view(true),
                      tensor_view<const float, 2>(rows.data(), 33, 200), 200, again.data(), 33));
  CHECK(y == again);
  pca_restore(host{}, plain_products(), b.view(true), y.data(), 33, 200, 0, tensor_view<float, 2>(whole.data(), 33, 200));
  double worst = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(rows[i]) - whole[i]));
  CHECK(worst < .5);  // the basis is rounded to half, and weights divide its error
  for (std::int64_t first = 0; first < 200; first += 64) {
    tensor_view<float, 2> part(pieces.data() + first, 33, std::min<std::int64_t>(64, 200 - first));
    part.strides[0] = 200;
    pca_restore(host{}, plain_products(), b.view(true), y.data(), 33, 200, first, part);
  }
  CHECK(whole == pieces);
}

TEST_CASE("a row that holds no numbers is seen, wherever it is") {
  const basis_case b(300, 20, 7);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{299}, std::size_t{4 * 300 + 150}}) {
      std::vector<float> rows = random_rows(5, 300, 8), y(20 * 5);
      rows[at] = bad;
      for (const std::int64_t components : {20, 0}) {  // also where no coefficient would tell
        CHECK_FALSE(pca_project(host{}, plain_products(), b.view(false), tensor_view<const float, 2>(rows.data(), 5, 300), components,
                                y.data(), 5));
      }
    }
  }
  std::vector<float> rows(300, 3e38f), y(20);  // finite rows whose sums are not
  std::vector<float> minus(300, -3e38f);
  pca_basis far = b.view(false);
  far.mean = minus.data();
  CHECK_FALSE(pca_project(host{}, plain_products(), far, tensor_view<const float, 2>(rows.data(), 1, 300), 20, y.data(), 1));
}
