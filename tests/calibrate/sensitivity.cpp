// Weights in closed form equal their definition, and foretell what noise in a channel does to the output of attention.

#include <support/calibration_reference.hpp>

#include <kvx/calibrate/sensitivity.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>

using namespace kvx;

namespace {

reference::layer_case make_case(std::size_t q, std::size_t h, std::size_t d, std::size_t dv, std::size_t tokens, unsigned seed) {
  reference::layer_case c;
  c.query_heads = q;
  c.kv_heads = h;
  c.key_dim = d;
  c.value_dim = dv;
  c.width = 13;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<float>& x, std::size_t n, float spread) {
    x.resize(n);
    for (float& y : x) y = spread * normal(random);
  };
  for (std::size_t p = tokens / 2; p < tokens; p += 3) c.positions.push_back(p);
  fill(c.q, c.positions.size() * q * d, 1.5f);
  fill(c.k, tokens * h * d, 1);
  fill(c.v, tokens * h * dv, 1);
  fill(c.projection, c.width * q * dv, .3f);
  fill(c.residual, 9 * c.width, 5);
  return c;
}

struct found_weights {
  std::vector<float> key, value;
};

found_weights weights_of(const reference::layer_case& c, int threads, double floor, std::size_t cut) {
  host exec;
  exec.threads = threads;
  const attention_shape shape{
      2,      static_cast<int>(c.query_heads), static_cast<int>(c.kv_heads), static_cast<int>(c.key_dim), static_cast<int>(c.value_dim),
      c.pairs};
  sensitivity s(shape, c.common_share);
  const coded_rows coded{static_cast<std::int64_t>(c.sinks), static_cast<std::int64_t>(c.newest), static_cast<std::int64_t>(c.window)};
  std::vector<std::int64_t> positions(c.positions.begin(), c.positions.end());
  for (int layer = 0; layer < 2; ++layer) {
    s.projection(layer, c.projection);
    s.residual(layer, c.residual, static_cast<std::int64_t>(c.width));
    const std::size_t row = c.query_heads * c.key_dim;
    for (std::size_t first = 0; first < positions.size(); first += cut) {
      const std::size_t n = std::min(cut, positions.size() - first);
      const std::span<const float> gain = c.gain.empty() ? std::span<const float>() : std::span(c.gain).subspan(first, n);
      s.add(exec, layer, {std::span(c.q).subspan(first * row, n * row), std::span(positions).subspan(first, n), c.k, c.v, gain}, coded);
    }
  }
  return {s.key_weights(floor), s.value_weights(floor)};
}

void check(const reference::layer_case& c) {
  std::vector<double> key, value;
  c.weights(key, value);
  for (const std::size_t cut : {1u, 100u}) {
    const found_weights found = weights_of(c, cut == 1 ? 1 : 2, 0, cut);
    REQUIRE(found.key.size() == 2 * key.size());
    REQUIRE(found.value.size() == 2 * value.size());
    for (std::size_t i = 0; i < found.key.size(); ++i) {
      CHECK(static_cast<double>(found.key[i]) == doctest::Approx(std::sqrt(key[i % key.size()])).epsilon(1e-3));
    }
    for (std::size_t i = 0; i < found.value.size(); ++i) {
      CHECK(static_cast<double>(found.value[i]) == doctest::Approx(std::sqrt(value[i % value.size()])).epsilon(1e-3));
    }
  }
}

}  // namespace

TEST_CASE("weights equal their definition: groups, dims, pairs, zones, windows, gains") {
  check(make_case(1, 1, 8, 8, 20, 1));
  auto c = make_case(6, 2, 16, 12, 40, 2);
  c.pairs = {rope_pairs::order::interleaved, 16};
  c.sinks = 4;
  c.newest = 8;
  check(c);
  c.pairs = {rope_pairs::order::halves, 8};
  c.window = 15;
  c.common_share = .2;
  check(c);
  c.gain.assign(c.positions.size(), .5f);
  c.gain.back() = 2;
  check(c);
  check(make_case(5, 5, 7, 9, 33, 3));
}

TEST_CASE("the weights foretell the change that noise makes") {
  // Noise in all channels of K or of V of one head; the change of W o relative to the residual stream, measured. A part of V's is common to
  // all rows.
  auto c = make_case(2, 1, 8, 8, 60, 4);
  c.common_share = .1;
  std::vector<double> key, value;
  c.weights(key, value);
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  const auto output = [&](const std::vector<double>& k, const std::vector<double>& v, std::size_t i) {
    std::vector<double> out(c.width);
    for (std::size_t h = 0; h < 2; ++h) {
      std::vector<double> a(c.positions[i] + 1), o(8);
      double sum = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        double dot = 0;
        for (std::size_t d = 0; d < 8; ++d) dot += static_cast<double>(c.q[(i * 2 + h) * 8 + d]) * k[j * 8 + d];
        sum += a[j] = std::exp(dot / std::sqrt(8.0));
      }
      for (std::size_t j = 0; j < a.size(); ++j) {
        for (std::size_t d = 0; d < 8; ++d) o[d] += a[j] / sum * v[j * 8 + d];
      }
      for (std::size_t e = 0; e < c.width; ++e) {
        for (std::size_t d = 0; d < 8; ++d) out[e] += static_cast<double>(c.projection[e * 16 + h * 8 + d]) * o[d];
      }
    }
    return out;
  };
  const std::vector<double> k(c.k.begin(), c.k.end()), v(c.v.begin(), c.v.end());
  double inverse = 0;
  for (std::size_t t = 0; t < 9; ++t) {
    double length = 0;
    for (std::size_t e = 0; e < c.width; ++e)
      length += static_cast<double>(c.residual[t * c.width + e]) * static_cast<double>(c.residual[t * c.width + e]);
    inverse += 1 / length / 9;
  }
  const double energy = 1 / inverse;
  const auto measured = [&](bool in_keys, double noise) {
    double change = 0;
    constexpr int trials = 200;
    for (int t = 0; t < trials; ++t) {
      auto moved = in_keys ? k : v;
      const double share = in_keys ? 0 : c.common_share;
      double common[8];
      for (double& x : common) x = std::sqrt(share) * normal(random);
      for (std::size_t n = 0; n < moved.size(); ++n) moved[n] += noise * (std::sqrt(1 - share) * normal(random) + common[n % 8]);
      for (std::size_t i = 0; i < c.positions.size(); ++i) {
        auto changed = in_keys ? output(moved, v, i) : output(k, moved, i);
        const auto plain = output(k, v, i);
        // The newest row is raw: its share is taken out of the comparison below by noise on all rows and newest = 1 in the weights.
        for (std::size_t e = 0; e < c.width; ++e) change += (changed[e] - plain[e]) * (changed[e] - plain[e]) / energy;
      }
    }
    return change / trials / static_cast<double>(c.positions.size()) / noise / noise;
  };
  auto all = c;
  all.newest = 0;
  all.weights(key, value);
  double expected_key = 0, expected_value = 0;
  for (const double x : key) expected_key += x;
  for (const double x : value) expected_value += x;
  CHECK(measured(false, .01) == doctest::Approx(expected_value).epsilon(.05));
  CHECK(measured(true, .003) == doctest::Approx(expected_key).epsilon(.08));
}

TEST_CASE("a few tokens of enormous length move no weight much") {
  auto c = make_case(2, 1, 4, 4, 30, 6);
  const found_weights plain = weights_of(c, 1, 0, 100);
  for (std::size_t e = 0; e < c.width; ++e) c.residual[e] *= 500;
  const found_weights sinks = weights_of(c, 1, 0, 100);
  for (std::size_t i = 0; i < plain.value.size(); ++i) CHECK(sinks.value[i] > .9f * plain.value[i]);
}

TEST_CASE("a floor keeps channels that nobody asked for") {
  auto c = make_case(2, 2, 4, 4, 20, 5);
  for (std::size_t i = 0; i < c.positions.size(); ++i) std::fill_n(c.q.begin() + static_cast<std::ptrdiff_t>((i * 2 + 1) * 4), 4, 0.0f);
  const found_weights plain = weights_of(c, 1, 0, 100), floored = weights_of(c, 1, .1, 100);
  CHECK(plain.key[5] == 0);
  double mean = 0;
  for (const float w : plain.key) mean += static_cast<double>(w) * static_cast<double>(w) / static_cast<double>(plain.key.size());
  CHECK(static_cast<double>(floored.key[5]) == doctest::Approx(.1 * std::sqrt(mean)));
  for (const float w : floored.key) CHECK(w > 0);
}

TEST_CASE("what is missing or does not fit is named") {
  sensitivity s({1, 2, 1, 4, 4});
  const std::vector<float> q(8), rows(4 * 3);
  const std::vector<std::int64_t> position{2}, late{3};
  CHECK_THROWS_AS(s.add(host{}, 0, {q, position, rows, rows}), usage_error);  // no projection
  s.projection(0, std::vector<float>(8 * 2, 1));
  CHECK_THROWS_AS(s.add(host{}, 1, {q, position, rows, rows}), usage_error);
  CHECK_THROWS_AS(s.add(host{}, 0, {q, late, rows, rows}), usage_error);
  CHECK_THROWS_AS(s.add(host{}, 0, {std::span(q).first(7), position, rows, rows}), usage_error);
  CHECK_THROWS_AS(static_cast<void>(s.key_weights()), usage_error);
  CHECK_THROWS_AS(sensitivity({1, 3, 2, 4, 4}), usage_error);
  CHECK_THROWS_AS(sensitivity({1, 2, 1, 4, 4, {rope_pairs::order::halves, 6}}), usage_error);
  CHECK_THROWS_AS(sensitivity({1, 2, 1, 4, 4}, 1.5), usage_error);
  CHECK_THROWS_AS(s.projection(0, std::vector<float>(9)), usage_error);
}
