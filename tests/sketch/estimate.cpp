// Inner products estimated from codes: no bias, small errors, for every kind of code; and balance where a head needs it.

#include <kvx/sketch/balance.hpp>
#include <kvx/sketch/host/key_code.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "support/coarse_recall.hpp"
#include "support/key_code.hpp"
#include "support/unbalanced_world.hpp"

namespace {

using kvx::key_sketch;
using weighting = key_sketch::weighting;

void normalise(std::vector<float>& x) {
  double square = 0;
  for (const float v : x) square += static_cast<double>(v) * v;
  for (float& v : x) v = static_cast<float>(v / std::sqrt(square));
}

struct errors {
  double bias = 0;
  double rms = 0;
  double least_alpha = 1;
};

/// Estimates for pairs of unit vectors at a cosine.
errors errors_of(const key_sketch& s, int dim, double cosine, int pairs) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto encoder = kvx::make_key_encoder<float>(s, dim);
  constexpr int tokens = 64;
  errors result;
  for (int first = 0; first < pairs; first += tokens) {
    std::vector<float> keys, queries;
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> k(static_cast<std::size_t>(dim)), q(k.size());
      for (float& v : k) v = normal(random);
      for (float& v : q) v = normal(random);
      normalise(k);
      double along = 0;
      for (std::size_t d = 0; d < q.size(); ++d) along += static_cast<double>(k[d]) * q[d];
      for (std::size_t d = 0; d < q.size(); ++d) q[d] -= static_cast<float>(along) * k[d];
      normalise(q);
      for (std::size_t d = 0; d < q.size(); ++d) q[d] = static_cast<float>(cosine * k[d] + std::sqrt(1 - cosine * cosine) * q[d]);
      keys.insert(keys.end(), k.begin(), k.end());
      kvx::rotate(q.data(), q.size(), s.seed);
      queries.insert(queries.end(), q.begin(), q.end());
    }
    kvx::test::coded_page page(s, dim, tokens);
    kvx::encode_page(encoder, keys.data(), dim, tokens, nullptr, page.columns());
    for (int t = 0; t < tokens; ++t) {
      const auto v = kvx::test::decoded_key(s, page, dim, tokens, t);
      const double estimate = std::inner_product(v.begin(), v.end(), queries.begin() + t * dim, 0.0);
      result.bias += (estimate - cosine) / pairs;
      result.rms += (estimate - cosine) * (estimate - cosine) / pairs;
    }
    const auto x = kvx::test::rotated_key(s, keys.data(), dim, {}, nullptr);
    for (int w = 0; w < kvx::weights_per_key(s, dim); ++w) {  // alpha = r / w, of the first key of every page
      double square = 0;
      for (int d = 0; d < dim; ++d) square += kvx::weight_of(s, d) == w ? std::pow(x[static_cast<std::size_t>(d)], 2) : 0;
      result.least_alpha = std::fmin(result.least_alpha, std::sqrt(square) / kvx::to_float(page.weights[static_cast<std::size_t>(w)]));
    }
  }
  result.rms = std::sqrt(result.rms);
  return result;
}

}  // namespace

TEST_CASE("60,000 pairs of unit vectors: no bias, the known error, alpha above .7") {
  for (const double cosine : {0.0, 0.6}) {
    CAPTURE(cosine);
    const errors e = errors_of({.centre = false}, 128, cosine, 60032);
    CHECK(std::fabs(e.bias) < 1e-3);
    CHECK(e.rms < .0067);  // known: .0066 at cosine 0
    CHECK(e.rms > .0045);
    CHECK(e.least_alpha > .7);
    MESSAGE("bias " << e.bias << ", rms " << e.rms << ", least alpha " << e.least_alpha);
  }
}

TEST_CASE("every kind of code is without bias, and finer ones err less") {
  for (const auto weights : {weighting::subspace, weighting::key}) {
    for (const int m : {4, 8, 16}) {
      for (const int dim : {80, 96, 128}) {
        CAPTURE(m);
        CAPTURE(dim);
        double coarser = 1;
        for (const int bits : {2, 4, 8}) {
          CAPTURE(bits);
          const errors e = errors_of({.subspace = m, .bits = bits, .weights = weights, .centre = false}, dim, .6, 1920);
          CHECK(std::fabs(e.bias) < 4 * e.rms / std::sqrt(1920));  // four standard errors
          CHECK(e.rms < coarser / 3);
          coarser = e.rms;
        }
        if (m > 4 && weights == weighting::key) break;  // one codebook, whatever m
      }
    }
  }
}

TEST_CASE("an unbalanced head is found by its balance") {
  for (const int dim : {128, 256}) {
    const kvx::test::unbalanced_world world(dim, 16384, 8, 1);
    kvx::balance_moments moments(dim);
    for (int t = 0; t < 1024; ++t) moments.add_key(world.keys.data() + t * dim);
    for (int t = 0; t < 8; ++t) moments.add_query(world.queries.data() + t * dim);
    std::vector<float> balance(static_cast<std::size_t>(dim));
    moments.balance({}, balance.data());
    const double with = kvx::test::coarse_recall(world.keys, world.queries, dim, 128, balance.data());
    const double without = kvx::test::coarse_recall(world.keys, world.queries, dim, 128, nullptr);
    MESSAGE("dim " << dim << ": recall " << with << " balanced, " << without << " unbalanced");
    CHECK(with >= .9);
    CHECK(without < .4);
  }
}
