// What a step is said to cost equals the bytes of rANS within 1 % and the error of its values to the bit; scales fit heavy tails.

#include <kvx/calibrate/step_costs.hpp>
#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace kvx;

namespace {

held_out_coefficients coefficients(std::int64_t tokens, std::int64_t rank, bool heavy) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential(std::sqrt(2.0));
  held_out_coefficients held;
  held.values.resize(tokens, rank);
  for (std::int64_t c = 0; c < rank; ++c) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double x = heavy ? exponential(random) * (random() % 2 == 0 ? 1 : -1) : normal(random);
      held.values(t, c) = static_cast<float>(x * 4 * std::pow(static_cast<double>(c + 1), -.75));
    }
  }
  return held;
}

}  // namespace

TEST_CASE("bits are those that rANS writes, errors those of what it gives back") {
  const scale_tables tables;
  for (const bool heavy : {false, true}) {
    const auto held = coefficients(2048, 40, heavy);
    const auto scales = fit_scales(host{}, tables, std::vector<float>(40, 1), held);
    for (const float step : {.1f, .5f, 1.5f}) {
      const std::int16_t log2_step = code_of_power(step);
      const coded_cost cost = cost_of_step(host{}, tables, scales, held, log2_step);
      const std::int64_t kept = coded_components(scales.data(), 40, log2_step);
      const std::vector<float> mean(40);
      const std::vector<half> basis(1600);
      const span_model model{{40, 40, mean.data(), nullptr, basis.data()}, scales.data(), &tables, nullptr, {}, {}};
      std::vector<std::byte> bytes(1 << 20);
      std::int64_t used = 0;
      const component_matrix<const float> in{held.values.data(), kept, 2048, 2048};
      REQUIRE(encode_coefficients(host{}, kvtc_entropy{}, model, in, log2_step, bytes, used).ok());
      // Beside the symbols: headers of the chunk and the stream, and the states of the lanes.
      const double written = 8 * static_cast<double>(used) / 2048, beside = 8.0 * (8 + 8 + 128) / 2048;
      CHECK(written <= 1.01 * cost.bits + beside);
      CHECK(written >= .995 * cost.bits);
      Eigen::MatrixXf back = Eigen::MatrixXf::Zero(2048, 40);
      REQUIRE(decode_coefficients(host{}, kvtc_entropy{}, model, std::span(bytes).first(static_cast<std::size_t>(used)),
                                  {back.data(), kept, 2048, 2048})
                  .ok());
      CHECK(static_cast<double>((back - held.values).squaredNorm()) / 2048 == doctest::Approx(cost.error).epsilon(1e-4));
    }
  }
}

TEST_CASE("the shape follows the tails, the scale the deviation") {
  const scale_tables tables;
  const auto gauss = fit_scales(host{}, tables, std::vector<float>(20, 1), coefficients(8000, 20, false));
  const auto laplace = fit_scales(host{}, tables, std::vector<float>(20, 1), coefficients(8000, 20, true));
  int gauss_sum = 0, laplace_sum = 0;
  for (std::size_t c = 0; c < 20; ++c) {
    gauss_sum += gauss[c].laplace;
    laplace_sum += laplace[c].laplace;
    CHECK(power_of_code(gauss[c].log2_scale) == doctest::Approx(4 * std::pow(static_cast<double>(c + 1), -.75)).epsilon(.05));
  }
  CHECK(gauss_sum < 20);
  CHECK(laplace_sum > 60);
}

TEST_CASE("without held-out tokens the scale is the fit's; a constant component costs nothing") {
  const scale_tables tables;
  const std::vector<float> variances{4, 0};
  held_out_coefficients none;
  none.values.resize(0, 2);
  const auto scales = fit_scales(host{}, tables, variances, none);
  CHECK(scales[0].log2_scale == 256);
  CHECK(scales[1].log2_scale == code_of_power(0));
  held_out_coefficients constant;
  constant.values = Eigen::MatrixXf::Zero(100, 2);
  const auto zero = fit_scales(host{}, tables, variances, constant);
  const coded_cost cost = cost_of_step(host{}, tables, zero, constant, 0);
  CHECK(cost.bits == 0);
  CHECK(cost.error == 0);
}
