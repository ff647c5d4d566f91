// The rotation is orthogonal for every length, follows its definition, and depends on the seed alone.

#include <kvx/transform/srht.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

constexpr std::uint64_t seed = 17;

std::vector<float> random_vector(std::size_t n, unsigned from) {
  std::mt19937 random(from);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

/// The definition: y_i = (-1)^(bits that i and j share) s_j x_j / sqrt p, summed over the block of i, in double.
std::vector<double> reference(const std::vector<float>& x) {
  std::vector<double> y;
  for (std::size_t first = 0; first < x.size();) {
    const std::size_t p = std::bit_floor(x.size() - first);
    for (std::size_t i = 0; i < p; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < p; ++j) {
        const bool minus =
            (static_cast<unsigned>(std::popcount(i & j)) + (kvx::random_bits(seed, (first + j) / 64) >> (first + j) % 64 & 1)) % 2 != 0;
        sum += minus ? -x[first + j] : x[first + j];
      }
      y.push_back(sum / std::sqrt(static_cast<double>(p)));
    }
    first += p;
  }
  return y;
}

double dot(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

}  // namespace

TEST_CASE("every length: the definition, and inner products kept") {
  for (std::size_t n = 1; n <= 576; n += n < 40 ? 1 : 67) {
    CAPTURE(n);
    auto x = random_vector(n, 1);
    auto y = random_vector(n, 2);
    const auto expected = reference(x);
    const double product = dot(x, y);
    const double scale = std::sqrt(dot(x, x) * dot(y, y));
    kvx::rotate(x.data(), n, seed);
    kvx::rotate(y.data(), n, seed);
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i) worst = std::fmax(worst, std::fabs(x[i] - expected[i]));
    CHECK(worst < 1e-5);
    CHECK(std::fabs(dot(x, y) - product) < 1e-6 * scale);
  }
  kvx::rotate(nullptr, 0, seed);
}

TEST_CASE("signs are fair, and those of another seed are others") {
  int minus = 0;
  int equal = 0;
  for (std::size_t j = 0; j < 4096; ++j) {
    minus += kvx::sign_of(seed, j) != 0 ? 1 : 0;
    equal += kvx::sign_of(seed, j) == kvx::sign_of(seed + 1, j) ? 1 : 0;
  }
  CHECK(std::abs(minus - 2048) < 160);  // five standard deviations
  CHECK(std::abs(equal - 2048) < 160);
}

TEST_CASE("one large channel becomes a vector of equal magnitudes") {
  std::vector<float> x(128);
  x[77] = 700;
  kvx::rotate(x.data(), x.size(), seed);
  for (const float v : x) CHECK(std::fabs(v) == doctest::Approx(700 / std::sqrt(128.0)).epsilon(1e-6));
}
