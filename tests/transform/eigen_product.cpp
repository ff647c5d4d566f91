// Eigen's product and the plain one are sums in double up to rounding, for every shape, transposed and added.

#include <kvx/transform/eigen_product.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace kvx;

TEST_CASE("products of every shape") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const std::int64_t m : {1, 3, 17, 64}) {
    for (const std::int64_t n : {1, 5, 33}) {
      for (const std::int64_t k : {0, 1, 4, 7, 130}) {
        for (const bool transposed : {false, true}) {
          for (const bool add : {false, true}) {
            const std::int64_t a_pitch = (transposed ? m : k) + 2, b_pitch = n + 1, c_pitch = n + 3;
            std::vector<float> a(static_cast<std::size_t>((transposed ? k : m) * a_pitch)), b(static_cast<std::size_t>(k * b_pitch));
            std::vector<float> c(static_cast<std::size_t>(m * c_pitch));
            for (auto* x : {&a, &b, &c}) {
              for (auto& v : *x) v = normal(random);
            }
            for (const matrix_product& product : {plain_products(), eigen_products()}) {
              std::vector<float> out = c;
              product.run(product.context, {transposed, add, m, n, k}, a.data(), a_pitch, b.data(), b_pitch, out.data(), c_pitch);
              double worst = 0;
              for (std::int64_t i = 0; i < m; ++i) {
                for (std::int64_t j = 0; j < c_pitch; ++j) {
                  const auto at = static_cast<std::size_t>(i * c_pitch + j);
                  double sum = j >= n || add ? c[at] : 0;
                  for (std::int64_t p = 0; p < k && j < n; ++p)
                    sum += static_cast<double>(a[static_cast<std::size_t>(transposed ? p * a_pitch + i : i * a_pitch + p)]) *
                           b[static_cast<std::size_t>(p * b_pitch + j)];
                  worst = std::max(worst, std::fabs(sum - out[at]));
                }
              }
              CHECK(worst < 1e-4);
            }
          }
        }
      }
    }
  }
}
