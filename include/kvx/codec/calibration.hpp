#pragma once
// What calibration leaves behind for a codec: spans with their bases, scales and plans, the map from tokens, and what a step costs.

#include <kvx/codec/chain.hpp>
#include <kvx/codec/component_scale.hpp>
#include <kvx/codec/feature_span.hpp>
#include <kvx/codec/token_predictor.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/transform/pca.hpp>
#include <kvx/transform/rope.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvx {

/// Whose rows a calibration is of. A row of a token is (layers, KV heads, dim), all layers and heads of the model.
struct calibration_shape {
  std::int32_t layers = 0;
  std::int32_t kv_heads = 0;
  std::int32_t key_dim = 0;
  std::int32_t value_dim = 0;

  std::int64_t key_features() const { return std::int64_t{layers} * kv_heads * key_dim; }
  std::int64_t value_features() const { return std::int64_t{layers} * kv_heads * value_dim; }
  friend bool operator==(const calibration_shape&, const calibration_shape&) = default;
};

/// K or V of one span.
///
/// shapes      mean, weights (F), weights empty: 1; basis (rank, F); scales (rank); outputs (rank of the predictor, F), empty: nothing is
///             predicted, else mean, basis and scales are of what the prediction leaves; levels: of each component of the plan, where the
///             faithful mode uses rANS
struct span_basis {
  std::vector<float> mean;
  std::vector<float> weights;
  std::vector<half> basis;
  std::vector<component_scale> scales;
  std::vector<half> outputs;
  bit_plan plan;
  std::vector<symbol_frequencies> levels;

  std::int64_t features() const { return static_cast<std::int64_t>(mean.size()); }
  std::int64_t rank() const { return static_cast<std::int64_t>(scales.size()); }
  pca_basis view() const { return {features(), rank(), mean.data(), weights.empty() ? nullptr : weights.data(), basis.data()}; }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(4 * (mean.size() + weights.size() + scales.size()) + 2 * (basis.size() + outputs.size()));
  }
  friend bool operator==(const span_basis&, const span_basis&) = default;
};

/// What one step of entropy-first coding costs, measured on tokens that the fit did not see.
///
/// log2_step   in units of 2^-8
/// bits        a token, all spans, K and V
/// errors      squared, weighted, summed over all features, a token
struct step_cost {
  std::int16_t log2_step = 0;
  std::uint16_t reserved = 0;
  float bits = 0;
  float key_error = 0;
  float value_error = 0;
  friend bool operator==(const step_cost&, const step_cost&) = default;
};
static_assert(sizeof(step_cost) == 16);

/// Everything that an encoder and a decoder must share.
///
/// turns       rotary embeddings that occur, and which one each layer has
/// keys, values   one a span
/// costs       of ascending steps
/// weighted    features were scaled by the sensitivity of the model, so that costs tell an expected KL
struct calibration {
  calibration_shape shape;
  std::vector<rope> turns;
  std::vector<std::uint16_t> turn_of_layer;
  std::int32_t rounding = dead_zone{}.rounding;
  std::int64_t sinks = 4;
  bool weighted = false;
  std::vector<feature_span> spans;
  std::vector<span_basis> keys, values;
  token_predictor key_predictor, value_predictor;
  std::vector<step_cost> costs;

  bool predicted() const { return !key_predictor.empty() || !value_predictor.empty(); }
  std::int64_t predictor_bytes() const {
    std::int64_t sum = key_predictor.bytes() + value_predictor.bytes();
    for (const span_basis& b : keys) sum += static_cast<std::int64_t>(2 * b.outputs.size());
    for (const span_basis& b : values) sum += static_cast<std::int64_t>(2 * b.outputs.size());
    return sum;
  }
  std::int64_t bytes() const {
    std::int64_t sum = key_predictor.bytes() + value_predictor.bytes();
    for (const span_basis& b : keys) sum += b.bytes();
    for (const span_basis& b : values) sum += b.bytes();
    return sum;
  }
  friend bool operator==(const calibration&, const calibration&) = default;
};

/// 16-bit bits of a token over those of a step, ids of 32 bits a token included where a predictor needs them.
inline double ratio_of(const calibration& c, const step_cost& cost) {
  std::int64_t features = 0;
  for (std::size_t s = 0; s < c.spans.size(); ++s) features += c.keys[s].features() + c.values[s].features();
  return 16.0 * static_cast<double>(features) / (static_cast<double>(cost.bits) + (c.predicted() ? 32 : 0));
}

/// What a squared weighted error of one does to the distribution, in nats: 1.5 on SmolLM2 over nine windows, and the same for K alone, V
/// alone and both, at 12, 25 and 35 times.
inline constexpr double kl_per_key_error = 1.5, kl_per_value_error = 1.5;

/// Expected KL of the next token's distribution, in nats, of coding all rows beyond the raw ones with a step; only of a weighted
/// calibration.
///
/// exactness   within a factor of about two: how a change of the residual stream grows to one of the distribution differs by model and text
inline double expected_kl(const step_cost& cost) {
  return kl_per_key_error * static_cast<double>(cost.key_error) + kl_per_value_error * static_cast<double>(cost.value_error);
}

/// The costs of a step between the measured ones, by interpolation of logarithms; of the nearest one beyond them.
inline step_cost cost_at(const calibration& c, std::int16_t log2_step, call_site where = call_site::here()) {
  require(!c.costs.empty(), "cost_at: the calibration holds costs of steps", where);
  const auto above = std::find_if(c.costs.begin(), c.costs.end(), [&](const step_cost& cost) { return cost.log2_step >= log2_step; });
  if (above == c.costs.end()) return c.costs.back();
  if (above == c.costs.begin() || above->log2_step == log2_step) return *above;
  const step_cost& low = above[-1];
  const double part = static_cast<double>(log2_step - low.log2_step) / static_cast<double>(above->log2_step - low.log2_step);
  const auto between = [&](float a, float b) {
    const double x = std::max(static_cast<double>(a), 1e-30), y = std::max(static_cast<double>(b), 1e-30);
    return static_cast<float>(x * std::pow(y / x, part));
  };
  return {log2_step, 0, between(low.bits, above->bits), between(low.key_error, above->key_error),
          between(low.value_error, above->value_error)};
}

/// The step at which a quantity that grows with the step reaches a target, between the measured ones by interpolation of logarithms; the
/// ends beyond them.
///
/// errors      usage_error: a calibration without costs, a target that is not positive
template <class Quantity>
std::int16_t step_for(const calibration& c, double target, const Quantity& quantity, call_site where = call_site::here()) {
  require(!c.costs.empty(), "step_for: the calibration holds costs of steps", where);
  require(target > 0, "step_for: the target is positive", where);
  const step_cost* below = &c.costs.front();
  for (const step_cost& cost : c.costs) {
    if (quantity(cost) >= target) {
      const double low = std::log(std::max(quantity(*below), 1e-30)), high = std::log(std::max(quantity(cost), 1e-30));
      const double part = high > low ? (std::log(target) - low) / (high - low) : 0;
      return static_cast<std::int16_t>(std::lround(below->log2_step + std::clamp(part, 0.0, 1.0) * (cost.log2_step - below->log2_step)));
    }
    below = &cost;
  }
  return below->log2_step;
}
inline std::int16_t step_for_ratio(const calibration& c, double ratio, call_site where = call_site::here()) {
  return step_for(
      c, ratio, [&](const step_cost& cost) { return ratio_of(c, cost); }, where);
}
/// The same for a rate: bits a number of K and V, ids included where rows are predicted.
inline std::int16_t step_for_rate(const calibration& c, double bits, call_site where = call_site::here()) {
  require(bits > 0, "step_for_rate: the rate is positive", where);
  return step_for_ratio(c, 16 / bits, where);
}
inline std::int16_t step_for_kl(const calibration& c, double kl, call_site where = call_site::here()) {
  require(c.weighted, "step_for_kl: only a calibration with sensitivity weights expects a KL", where);
  return step_for(
      c, kl, [](const step_cost& cost) { return expected_kl(cost); }, where);
}
inline std::int16_t step_for_error(const calibration& c, double error, call_site where = call_site::here()) {
  return step_for(
      c, error, [](const step_cost& cost) { return static_cast<double>(cost.key_error) + static_cast<double>(cost.value_error); }, where);
}

}  // namespace kvx
