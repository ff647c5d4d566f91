#pragma once
// A calibration made by hand, of any small shape: means and weights at random, cosine bases, and everything that both modes need.

#include <support/span_case.hpp>

#include <kvx/codec/calibration.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace kvx::test {

/// K or V of a span whose components have the scales of a power law over `spread`.
inline span_basis small_basis(std::int64_t features, std::int64_t predictor_rank, unsigned seed) {
  span_case made(1, features, 6);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  span_basis b;
  for (std::int64_t f = 0; f < features; ++f) b.mean.push_back(.1f * normal(random));
  b.weights = made.weights;
  b.basis = made.basis;
  for (std::int64_t c = 0; c < features; ++c) b.scales.push_back({code_of_power(.8f), 0, 0});  // rows are flat noise
  b.plan.runs = {{static_cast<std::int32_t>(features), 4}};
  symbol_frequencies middle;  // levels of Gaussian coefficients between their least and greatest
  for (std::size_t i = 0; i < 16; ++i)
    middle.of[i] = static_cast<std::uint16_t>(56 * (std::min<std::size_t>(i, 15 - i) + 1) + (i == 7 || i == 8 ? 32 : 0));
  b.levels.assign(static_cast<std::size_t>(features), middle);
  for (std::int64_t i = 0; i < predictor_rank * features; ++i) b.outputs.push_back(round_to<half>(.02f * normal(random)));
  return b;
}

/// A calibration of these spans.
inline calibration small_calibration(calibration_shape shape, std::vector<feature_span> spans, std::int64_t predictor_rank = 0) {
  calibration c;
  c.shape = shape;
  c.turns = {{{rope_pairs::order::halves, shape.key_dim / 2 * 2}, 10000}, {{rope_pairs::order::interleaved, 2}, 500}};
  for (std::int32_t l = 0; l < shape.layers; ++l) c.turn_of_layer.push_back(static_cast<std::uint16_t>(l % 2));
  c.spans = std::move(spans);
  unsigned seed = 1;
  for (const feature_span& s : c.spans) {
    c.keys.push_back(small_basis(s.features(shape.key_dim), predictor_rank, seed++));
    c.values.push_back(small_basis(s.features(shape.value_dim), predictor_rank, seed++));
  }
  if (predictor_rank > 0) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    constexpr std::int64_t width = 6;
    for (token_predictor* p : {&c.key_predictor, &c.value_predictor}) {
      p->embedding = width;
      p->rank = predictor_rank;
      for (std::int64_t i = 0; i < 2 * width * predictor_rank; ++i) p->inputs.push_back(round_to<half>(normal(random)));
    }
  }
  return c;
}

}  // namespace kvx::test
