// The balance is its formula; rows that are not finite, channels without variance and heads without queries do not break it.

#include <kvx/sketch/balance.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

constexpr int dim = 12;

/// Keys 3 + s_d normal, queries normal / s_d, s_d = d + 1.
kvx::balance_moments learned(int rows, double noise_of_keys = 1) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  kvx::balance_moments moments(dim);
  for (int t = 0; t < rows; ++t) {
    float key[dim], query[dim];
    for (int d = 0; d < dim; ++d) key[d] = 3 + static_cast<float>(noise_of_keys) * static_cast<float>(d + 1) * normal(random);
    for (int d = 0; d < dim; ++d) query[d] = normal(random) / static_cast<float>(d + 1);
    moments.add_key(key);
    moments.add_query(query);
  }
  return moments;
}

}  // namespace

TEST_CASE("(E q^2 / Var k)^(1/4): here 1 / (d + 1), whatever the mean") {
  float a[dim];
  learned(20000).balance({}, a);
  for (int d = 0; d < dim; ++d) CHECK(a[d] * static_cast<float>(d + 1) == doctest::Approx(1).epsilon(.01));
}

TEST_CASE("channels of a RoPE pair share their moments") {
  for (const auto order : {kvx::rope_pairs::order::interleaved, kvx::rope_pairs::order::halves}) {
    const kvx::rope_pairs pairs{order, 8};
    float a[dim];
    learned(20000).balance(pairs, a);
    for (int d = 0; d < dim; ++d) {
      CHECK(a[d] == a[pairs.partner(d)]);
      const double i = d + 1;
      const double j = pairs.partner(d) + 1;
      CHECK(a[d] / std::pow((1 / (i * i) + 1 / (j * j)) / (i * i + j * j), .25) == doctest::Approx(1).epsilon(.01));
    }
    CHECK(a[9] != a[8]);
  }
}

TEST_CASE("nothing learned: 1") {
  const auto is_one = [](const kvx::balance_moments& m) {
    float a[dim];
    m.balance({}, a);
    for (const float x : a) CHECK(x == 1);
  };
  is_one(kvx::balance_moments(dim));
  is_one(learned(1));
  is_one(learned(50, 0));  // all keys equal
  kvx::balance_moments keys_alone(dim);
  const float key[2][dim] = {{1, 2, 3}, {3, 1, 2}};
  for (const auto& k : key) keys_alone.add_key(k);
  is_one(keys_alone);
}

TEST_CASE("rows that are not finite are left out; order of keys and queries against each other does not matter") {
  auto moments = learned(50);
  float bad[dim] = {};
  bad[7] = std::numeric_limits<float>::quiet_NaN();
  moments.add_key(bad);
  bad[7] = std::numeric_limits<float>::infinity();
  moments.add_query(bad);
  CHECK(moments == learned(50));
}

TEST_CASE("a channel without variance or energy gets a finite balance") {
  kvx::balance_moments moments(2);
  for (int t = 0; t < 10; ++t) {
    const float key[2] = {5, static_cast<float>(t)};
    const float query[2] = {static_cast<float>(t), 0};
    moments.add_key(key);
    moments.add_query(query);
  }
  float a[2];
  moments.balance({}, a);
  for (const float x : a) CHECK((x > 1e-3 && x < 1e3));
}

TEST_CASE("a balance of nothing is refused") { CHECK_THROWS_AS(kvx::balance_moments(0), kvx::usage_error); }
