#pragma once
// Scales of components, and what quantisation steps cost, from coefficients of held-out tokens.

#include <kvx/backend/host.hpp>
#include <kvx/calibrate/moments.hpp>
#include <kvx/codec/component_scale.hpp>
#include <kvx/codec/quantize.hpp>
#include <kvx/codec/scale_tables.hpp>
#include <kvx/codec/symbol_table.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// Coefficients of held-out tokens: a component a column, and the energy a token of what the basis leaves out.
struct held_out_coefficients {
  Eigen::MatrixXf values;                                               // (tokens, rank)
  double dropped = 0;
};

/// Bits and squared error a token of some components under a step.
struct coded_cost {
  double bits = 0;
  double error = 0;
};

/// Bits that rANS spends on a symbol of a frequency, by frequency; 0 where a symbol does not occur.
inline const std::array<float, (1 << rans_bits) + 1>& bits_of_frequency() {
  static const auto bits = [] {
    std::array<float, (1 << rans_bits) + 1> all{};
    for (std::size_t f = 1; f < all.size(); ++f) all[f] = static_cast<float>(rans_bits - std::log2(static_cast<double>(f)));
    return all;
  }();
  return bits;
}

/// Bits of a value under an alphabet, its raw bits and the bytes of an escape included.
inline double bits_of_value(const symbol_lookup& table, std::int32_t value) {
  const symbol_of_value s = find_symbol(table, value);
  const double escape = !s.escaped ? 0 : escape_code(s.distance) < 255 ? 8 : 24;
  return static_cast<double>(bits_of_frequency()[table.frequencies[s.symbol]]) + table.raw_bits + escape;
}

/// One component's values coded with a step.
///
/// shapes      values (tokens)
inline coded_cost component_cost(const scale_tables& tables, const component_scale& scale, std::int16_t log2_step,
                                 std::span<const float> values) {
  const std::uint16_t number = table_of_scale(scale, log2_step);
  const symbol_lookup& table = tables.lookup(number);
  const float step = power_of_code(log2_step), inverse = power_of_code(-log2_step);
  coded_cost cost;
  for (const float x : values) {
    const std::int32_t v = std::clamp(quantised(x, inverse, tables.rounding()), -32767, 32767);
    const double off = static_cast<double>(x) -
                       static_cast<double>(dequantised(v, tables.level(number), tables.rounding(), step / scale_tables::level_units));
    cost.bits += bits_of_value(table, v);
    cost.error += off * off;
  }
  return cost;
}

/// Bits and error a token of all components of a basis; those beyond the last one that is coded cost their energy.
inline coded_cost cost_of_step(const host& exec, const scale_tables& tables, std::span<const component_scale> scales,
                               const held_out_coefficients& held, std::int16_t log2_step) {
  const auto tokens = static_cast<std::size_t>(held.values.rows());
  const std::int64_t coded = coded_components(scales.data(), static_cast<std::int64_t>(scales.size()), log2_step);
  std::vector<coded_cost> costs(scales.size());
  for_each_task(exec, static_cast<std::int64_t>(scales.size()), [&](std::int64_t c) {
    const std::span<const float> column(held.values.data() + held.values.rows() * c, tokens);
    coded_cost& cost = costs[static_cast<std::size_t>(c)];
    if (c < coded) {
      cost = component_cost(tables, scales[static_cast<std::size_t>(c)], log2_step, column);
    } else {
      for (const float x : column) cost.error += static_cast<double>(x) * static_cast<double>(x);
    }
  });
  coded_cost sum;
  for (const coded_cost& c : costs) {
    sum.bits += c.bits;
    sum.error += c.error;
  }
  const double each = tokens > 0 ? 1 / static_cast<double>(tokens) : 0;
  return {sum.bits * each, sum.error * each + held.dropped};
}

/// Scale and shape of every component.
///
/// what        the root of the mean square of held-out coefficients (the fit's own variance is too small where tokens are few), and of the
///             five shapes the one that codes them in the fewest bits with a step of `shape_step` deviations
/// shapes      variances (rank) of the fit, for components without held-out tokens
inline std::vector<component_scale> fit_scales(const host& exec, const scale_tables& tables, std::span<const float> variances,
                                               const held_out_coefficients& held, float shape_step = 1) {
  std::vector<component_scale> scales(variances.size());
  const auto tokens = static_cast<std::size_t>(held.values.rows());
  for_each_task(exec, static_cast<std::int64_t>(variances.size()), [&](std::int64_t i) {
    const auto c = static_cast<std::size_t>(i);
    component_scale& scale = scales[c];
    if (tokens < 64) {
      scale.log2_scale = code_of_power(std::sqrt(variances[c]));
      return;
    }
    const std::span<const float> column(held.values.data() + held.values.rows() * i, tokens);
    double square = 0;
    for (const float x : column) square += static_cast<double>(x) * static_cast<double>(x);
    const auto deviation = static_cast<float>(std::sqrt(square / static_cast<double>(tokens)));
    scale.log2_scale = code_of_power(deviation);
    const std::int16_t step = code_of_power(deviation * shape_step);
    double least = infinity;
    for (std::uint8_t shape = 0; shape < shape_count; ++shape) {
      const double bits = component_cost(tables, {scale.log2_scale, shape}, step, column).bits;
      if (bits < least) {
        least = bits;
        scale.laplace = shape;
      }
    }
  });
  return scales;
}

}  // namespace kvx
