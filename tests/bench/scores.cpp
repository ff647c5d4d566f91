// Divergence, errors and medians against their closed forms.

#include <scores.hpp>

#include <divergence.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

using doctest::Approx;

namespace {

std::vector<float> random_logits(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<double> logs(std::vector<double> p) {
  for (double& x : p) x = std::log(x);
  return p;
}

}  // namespace

TEST_CASE("a distribution against itself, and against the same logits shifted, has no divergence") {
  const auto x = random_logits(49152, 1);
  const auto p = decode_loop::log_probabilities(x);
  CHECK(quality::kl(p, p) == 0);

  auto shifted = x;
  for (float& value : shifted) value += 16;
  CHECK(quality::kl(p, decode_loop::log_probabilities(shifted)) == Approx(0).epsilon(1e-6));
}

TEST_CASE("divergence has its closed forms") {
  CHECK(quality::kl(logs({.5, .5}), logs({.25, .75})) == Approx(.5 * std::log(2) + .5 * std::log(2.0 / 3)));
  CHECK(quality::kl(logs({1, 0, 0, 0}), logs({.25, .25, .25, .25})) == Approx(std::log(4)));                 // 0 log 0 adds nothing
  CHECK(quality::kl(logs({.25, .25, .25, .25}), logs({1, 0, 0, 0})) == std::numeric_limits<double>::infinity());

  // softmax(x) against softmax(x / 2), from sums: KL = E x / 2 - log Z(x) + log Z(x / 2).
  const auto x = random_logits(1000, 2);
  auto halved = x;
  for (float& value : halved) value /= 2;
  double z = 0, z_half = 0, mean = 0;
  for (const float value : x) {
    z += std::exp(static_cast<double>(value));
    z_half += std::exp(static_cast<double>(value) / 2);
    mean += static_cast<double>(value) * std::exp(static_cast<double>(value));
  }
  CHECK(quality::kl(decode_loop::log_probabilities(x), decode_loop::log_probabilities(halved)) ==
        Approx(mean / z / 2 - std::log(z) + std::log(z_half)));
}

TEST_CASE("divergence is never negative") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    CHECK(quality::kl(decode_loop::log_probabilities(random_logits(300, seed)),
                      decode_loop::log_probabilities(random_logits(300, seed + 1000))) > 0);
  }
}

TEST_CASE("mean, standard error and median of 1..n") {
  for (const int n : {1, 2, 3, 10, 101}) {
    CAPTURE(n);
    std::vector<double> x;
    for (int i = n; i >= 1; --i) x.push_back(i);
    const auto s = quality::summarise(x);
    CHECK(s.mean == Approx((n + 1) / 2.0));
    CHECK(s.median == Approx((n + 1) / 2.0));
    CHECK(s.error == Approx(n == 1 ? 0 : std::sqrt((n + 1) / 12.0)));   // the variance of 1..n over n - 1 is n (n + 1) / 12
  }
  const auto skewed = quality::summarise(std::vector<double>{0, 0, 0, 10});
  CHECK(skewed.mean == 2.5);
  CHECK(skewed.median == 0);
}

TEST_CASE("perplexity is exp of the mean surprise, its error that of the mean times as much") {
  const auto s = quality::exponential(quality::summarise(std::vector<double>{std::log(2.0), std::log(8.0)}));
  CHECK(s.mean == Approx(4));
  CHECK(s.error == Approx(4 * std::log(2.0)));
}
