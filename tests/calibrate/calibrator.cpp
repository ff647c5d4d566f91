// Calibration as a whole, on rows of a made-up model whose structure is known; its file; and what the report says.

#include <support/made_up_model.hpp>

#include <kvx/calibrate/calibrator.hpp>
#include <kvx/calibrate/drift.hpp>
#include <kvx/codec/calibration_file.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

TEST_CASE("the same calibration however passages are cut into calls") {
  const calibration whole = calibrated({.rank = 8}, true, 500), pieces = calibrated({.rank = 8}, true, 37);
  REQUIRE(whole.keys.size() == 3);
  REQUIRE(pieces.costs.size() == whole.costs.size());
  for (std::size_t i = 0; i < whole.costs.size(); ++i) {
    CHECK(pieces.costs[i].log2_step == whole.costs[i].log2_step);
    CHECK(static_cast<double>(pieces.costs[i].bits) == doctest::Approx(static_cast<double>(whole.costs[i].bits)).epsilon(.01));
    CHECK(static_cast<double>(pieces.costs[i].key_error) == doctest::Approx(static_cast<double>(whole.costs[i].key_error)).epsilon(.01));
  }
  CHECK(check_calibration(whole).ok());
}

TEST_CASE("costs are those of the codec's bytes and rows, on other passages") {
  const calibration c = calibrated({.spans = whole_model(4, 2)}, false);
  const model m;
  const auto fresh = m.run(1024, 99);
  for (const double ratio : {12.0, 20.0}) {
    const std::int16_t step = step_for_ratio(c, ratio);
    CHECK(ratio_of(c, cost_at(c, step)) == doctest::Approx(ratio).epsilon(.05));
    const coded_cost coded = code_keys(c, 0, fresh, step);
    CHECK(coded.error == doctest::Approx(static_cast<double>(cost_at(c, step).key_error)).epsilon(.1));
    CHECK(coded.bits < static_cast<double>(cost_at(c, step).bits));
  }
  for (std::size_t i = 1; i < c.costs.size(); ++i) {
    CHECK(c.costs[i].bits <= c.costs[i - 1].bits);
    CHECK(c.costs[i].key_error >= c.costs[i - 1].key_error);
  }
}

TEST_CASE("a predictor takes out what tokens tell") {
  calibration_report with, without;
  const calibration c = calibrated({.spans = whole_model(4, 2), .predictor_rank = 10, .ridge = 1e-4}, true, 100, &with);
  const calibration plain = calibrated({.spans = whole_model(4, 2)}, false, 100, &without);
  CHECK(c.predicted());
  CHECK_FALSE(plain.predicted());
  CHECK(with.spans[0].predicted > .7);
  CHECK(without.spans[0].predicted == 0);
  const std::int16_t step = plain.costs[plain.costs.size() / 2].log2_step;
  CHECK(cost_at(c, step).bits < .7f * cost_at(plain, step).bits);
}

TEST_CASE("sinks, newest rows, rows no later token reads and rows that are not finite are left out") {
  const model m;
  const auto p = m.run(200, 5);
  const auto count = [&](const calibration_options& options, float bad = 0) {
    calibrator c(shape, options);
    auto q = p;
    q.keys[static_cast<std::size_t>(100 * shape.key_features())] += bad;
    q.values[static_cast<std::size_t>(101 * shape.value_features())] += bad;
    feed(c, q, 64, false);
    return std::pair(c.tokens() + c.held_out(), c.left_out());
  };
  CHECK(count({.sinks = 0, .newest = 0}) == std::pair<std::int64_t, std::int64_t>(200, 0));
  CHECK(count({.sinks = 4, .newest = 32}) == std::pair<std::int64_t, std::int64_t>(164, 0));
  CHECK(count({.sinks = 4, .newest = 32, .window = 100}) == std::pair<std::int64_t, std::int64_t>(68, 0));
  CHECK(count({.sinks = 4, .newest = 32}, std::numeric_limits<float>::quiet_NaN()) == std::pair<std::int64_t, std::int64_t>(162, 2));
  CHECK(count({.sinks = 4, .newest = 32}, infinity) == std::pair<std::int64_t, std::int64_t>(162, 2));
}

TEST_CASE("one passage alone: nothing is held out, and the report says so") {
  const model m;
  calibrator c(shape, {});
  feed(c, m.run(300, 5), 64, false);
  calibration_report report;
  const calibration found = c.finish(host{}, {}, {}, &report);
  CHECK(report.held_out == 0);
  CHECK(report.warnings.size() == 2);
  CHECK(found.costs.empty());
  CHECK(check_calibration(found).ok());
  CHECK_THROWS_AS(static_cast<void>(step_for_ratio(found, 10)), usage_error);
  CHECK_THROWS_AS(calibrator(shape, {}).finish(host{}), usage_error);
  const auto p = m.run(10, 5);
  CHECK_THROWS_AS(c.add(host{}, {0, 9, p.keys, p.values}), usage_error);
}

TEST_CASE("weights are folded in: what matters more is coded with less error") {
  std::vector<float> key(static_cast<std::size_t>(shape.key_features()), 1), value(static_cast<std::size_t>(shape.value_features()), 1);
  for (std::size_t i = 0; i < 8; ++i) key[i] = 10;
  const calibration plain = calibrated({.spans = whole_model(4, 2)}, false),
                    weighted = calibrated({.spans = whole_model(4, 2)}, false, 100, nullptr, key, value);
  CHECK(weighted.weighted);
  const auto fresh = model().run(300, 77);
  const auto error_of_first = [&](const calibration& c) {
    const span_basis& b = c.keys[0];
    row_matrix rows = Eigen::Map<const row_matrix>(fresh.keys.data(), fresh.tokens, shape.key_features());
    const row_matrix before = rows;
    Eigen::MatrixXf coefficients = coefficients_of(host{}, b, rows, {});
    const float step = power_of_code(step_for_ratio(c, 20));
    for (Eigen::Index i = 0; i < coefficients.size(); ++i) {
      float& x = coefficients.data()[i];
      x = step * std::round(x / step);
    }
    row_matrix back = coefficients * from_halves(b.basis, b.rank(), b.features());
    if (!b.weights.empty()) back *= Eigen::Map<const Eigen::VectorXf>(b.weights.data(), b.features()).cwiseInverse().asDiagonal();
    back.rowwise() += Eigen::Map<const Eigen::RowVectorXf>(b.mean.data(), b.features());
    return (back - before).leftCols(8).squaredNorm();
  };
  CHECK(error_of_first(weighted) < .5f * error_of_first(plain));
  const double middle = expected_kl(weighted.costs[weighted.costs.size() / 2]);
  CHECK(step_for_kl(weighted, middle) == weighted.costs[weighted.costs.size() / 2].log2_step);
  CHECK(step_for_kl(weighted, 1.5 * middle) > step_for_kl(weighted, middle));
  CHECK_THROWS_AS(static_cast<void>(step_for_kl(plain, 1)), usage_error);
}

TEST_CASE("a faithful plan keeps its budget and has an alphabet a component") {
  const calibration c = calibrated({.spans = whole_model(4, 2), .finest_ratio = 0, .plan_ratio = 4}, false);
  for (const span_basis& b : {c.keys[0], c.values[0]}) {
    CHECK(b.plan.bits_per_token() <= plan_budget(b.features(), 4));
    CHECK(b.plan.bits_per_token() > plan_budget(b.features(), 4) / 2);
    CHECK(static_cast<std::int64_t>(b.levels.size()) == b.plan.components());
  }
  CHECK(check_calibration(c).ok());
}

TEST_CASE("spans: blocks, layers alone, classes, some heads") {
  for (const auto& spans : {blocks_of_layers(4, 2, 2), single_layers(4, 2), classes_of_layers(std::vector<int>{0, 1, 0, -1}, 2),
                            with_heads(whole_model(4, 2), 1, 1)}) {
    const calibration c = calibrated({.spans = spans}, true);
    CHECK(check_calibration(c).ok());
    CHECK(c.spans == spans);
    for (std::size_t s = 0; s < spans.size(); ++s) {
      CHECK(c.keys[s].features() == spans[s].features(8));
      CHECK(c.values[s].features() == spans[s].features(6));
    }
  }
  CHECK_THROWS_AS(blocks_of_layers(4, 2, 5), usage_error);
  CHECK_THROWS_AS(with_heads(whole_model(4, 2), 1, 2), usage_error);
  CHECK_THROWS_AS(calibrator(shape, {.spans = {{{4}, 0, 2}}}), usage_error);
}

TEST_CASE("the report names what is wanting") {
  calibration_report report;
  const calibration c = calibrated({}, false, 100, &report);
  CHECK(report.tokens + report.held_out == 8 * (500 - 36));
  CHECK(report.warnings.size() == 1);  // several spans, no weights
  const std::string text = report_text(report, c);
  CHECK(text.find("K of layer 0 ") != std::string::npos);
  CHECK(text.find("warning: several spans") != std::string::npos);
  CHECK(text.find("20.0x") != std::string::npos);
}

TEST_CASE("drift: none on rows of the same kind, seen where mean or spread changed") {
  const model m;
  const auto fresh = m.run(800, 321);
  std::vector<float> inputs(static_cast<std::size_t>(fresh.tokens * 2 * width));
  for (std::int64_t t = 0; t < fresh.tokens; ++t) {
    const float* const here = fresh.embeddings.data() + t * width;
    normed_embedding(here, width, inputs.data() + 2 * t * width);
    normed_embedding(t > 0 ? here - width : nullptr, width, inputs.data() + (2 * t + 1) * width);
  }
  for (const bool predictor : {false, true}) {
    const calibration c = calibrated({.predictor_rank = 10}, predictor);
    const auto in = predictor ? std::span<const float>(inputs) : std::span<const float>();
    const drift_report same = measure_drift(host{}, c, {fresh.keys, fresh.values, in});
    REQUIRE(same.keys.size() == 3);
    CHECK(same.bits == doctest::Approx(1).epsilon(.05));
    CHECK(same.error == doctest::Approx(1).epsilon(.1));
    CHECK(same.keys[0].shift < .15);
    CHECK(same.values[2].spread < .2);
    auto keys = fresh.keys;
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] += i % 64 < 16 ? 3.f : 0;
    const drift_report moved = measure_drift(host{}, c, {keys, fresh.values, in});
    CHECK(moved.keys[0].shift > .5);
    CHECK(moved.keys[2].shift < .15);
    CHECK(moved.bits > 1.02);
    auto values = fresh.values;
    for (float& v : values) v *= 4;
    const drift_report wider = measure_drift(host{}, c, {fresh.keys, values, in});
    CHECK(wider.values[0].spread > 1);
    CHECK(wider.bits > 1.2);
    CHECK(drift_text(wider, c).find("V of layers 2-3") != std::string::npos);
    if (!predictor) continue;
    calibration of_values = c;
    of_values.key_predictor = {};
    for (span_basis& b : of_values.keys) b.outputs.clear();
    CHECK_THROWS_AS(static_cast<void>(measure_drift(host{}, of_values, {fresh.keys, fresh.values})), usage_error);
  }
  const calibration c = calibrated({}, false);
  CHECK_THROWS_AS(static_cast<void>(measure_drift(host{}, c, {std::span(fresh.keys).first(5), fresh.values})), usage_error);
}
