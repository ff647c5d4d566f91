// What may be asked of a calibration: keys as a cache keeps them, another plan, channels that are constant or far from the rest.

#include <support/made_up_model.hpp>

#include <kvx/codec/calibration_file.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

/// Eight passages through `change`, calibrated.
template <class Change>
calibration calibrated_on(const calibration_options& options, const Change& change) {
  const model m;
  calibrator c(shape, options);
  for (unsigned i = 0; i < 8; ++i) {
    model::passage p = m.run(400, 10 + i);
    change(p);
    feed(c, p, 100, false);
  }
  return c.finish(host{});
}

/// Keys of all layers turned at their positions, by `of`, but for layer 1, which does not turn.
void turn(model::passage& p, const rope& of, bool forwards) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(p.tokens));
  std::iota(positions.begin(), positions.end(), 0);
  const rope_turns turns(of, positions);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t row = 0; row < shape.layers * shape.kv_heads; ++row) {
      if (row / shape.kv_heads == 1) continue;
      turn_key(p.keys.data() + t * shape.key_features() + row * shape.key_dim, turns.pairs(), turns.of(t), turns.magnitude(), forwards);
    }
  }
}

}  // namespace

TEST_CASE("keys as a cache keeps them are turned back: every kind of rotary embedding, layers that do not turn") {
  using order = rope_pairs::order;
  const calibration plain = calibrated_on({.spans = whole_model(4, 2)}, [](model::passage&) {});
  const std::vector<rope> kinds{
      {.pairs = {order::halves, 8}, .base = 1e4},
      {.pairs = {order::interleaved, 8}, .base = 1e5},
      {.pairs = {order::halves, 4}},
      {.pairs = {order::halves, 8}, .base = 5e5, .scaled = rope::scaling::llama3, .factor = 8, .original_tokens = 64},
      {.pairs = {order::interleaved, 6}, .scaled = rope::scaling::yarn, .factor = 4, .original_tokens = 64}};
  for (const rope& kind : kinds) {
    calibration_options options{.spans = whole_model(4, 2)};
    options.turns = {rope{}, kind};
    options.turn_of_layer = {1, 0, 1, 1};
    const auto turned = [&](model::passage& p) { turn(p, kind, true); };
    const calibration without = calibrated_on(options, turned);
    options.turned_keys = true;
    const calibration with = calibrated_on(options, turned);
    CHECK(with.turns == options.turns);
    CHECK(with.turn_of_layer == options.turn_of_layer);
    CHECK(check_calibration(with).ok());
    const std::int16_t step = step_for_ratio(plain, 16);
    CHECK(static_cast<double>(cost_at(with, step).bits) == doctest::Approx(static_cast<double>(cost_at(plain, step).bits)).epsilon(.002));
    CHECK(cost_at(without, step).bits > 1.1f * cost_at(plain, step).bits);
    double off = 0;
    for (std::size_t f = 0; f < plain.keys[0].mean.size(); ++f) {
      off = std::max(off, std::abs(static_cast<double>(with.keys[0].mean[f] - plain.keys[0].mean[f])));
    }
    CHECK(off < 1e-3);
  }
  CHECK_THROWS_AS(calibrator(shape, {.turned_keys = true}), usage_error);
  CHECK_THROWS_AS(calibrator(shape, {.turns = {rope{}}, .turn_of_layer = {0, 0, 0}}), usage_error);
  CHECK_THROWS_AS(calibrator(shape, {.turns = {rope{}}, .turn_of_layer = {0, 0, 1, 0}}), usage_error);
  CHECK_THROWS_AS(calibrator(shape, {.turns = {{.pairs = {order::halves, 10}}}, .turn_of_layer = {0, 0, 0, 0}}), usage_error);
}

TEST_CASE("another plan for the same fit is what that plan's calibration has") {
  for (const bool predictor : {false, true}) {
    const model m;
    const auto made = [&](double ratio, calibrator& c) {
      for (unsigned i = 0; i < 8; ++i) feed(c, m.run(300, 10 + i), 100, predictor);
      const calibration found = c.finish(host{});
      CHECK(found.keys[0].plan.bits_per_token() <= plan_budget(found.keys[0].features(), ratio));
      return found;
    };
    const auto options = [](double ratio) {
      return calibration_options{.spans = blocks_of_layers(4, 2, 2), .finest_ratio = 0, .predictor_rank = 6, .plan_ratio = ratio};
    };
    calibrator eight(shape, options(8), predictor ? width : 0), four(shape, options(4), predictor ? width : 0);
    const calibration at_eight = made(8, eight), at_four = made(4, four);
    CHECK_FALSE(at_eight == at_four);
    CHECK(eight.with_plan(host{}, at_eight, 4) == at_four);
    CHECK(eight.with_plan(host{}, at_four, 8) == at_eight);
    CHECK_THROWS_AS(static_cast<void>(eight.with_plan(host{}, at_eight, 0)), usage_error);
    calibration other = at_eight;
    other.spans = whole_model(4, 2);
    CHECK_THROWS_AS(static_cast<void>(eight.with_plan(host{}, other, 4)), usage_error);
  }
}

TEST_CASE("a bias thirty times the rest costs neither bits nor digits, and a constant channel nothing at all") {
  const calibration_options options{.spans = whole_model(4, 2)};
  const auto bias = [](model::passage& p) {
    for (std::size_t i = 0; i < p.keys.size(); ++i) p.keys[i] += i % 8 == 2 ? 600.0f : i % 8 == 5 ? -905.0f : 0;
  };
  const auto hold = [](model::passage& p) {
    for (std::size_t i = 0; i < p.keys.size(); ++i) p.keys[i] = i % 8 == 3 ? 77.25f : p.keys[i];
  };
  const calibration plain = calibrated_on(options, [](model::passage&) {}), biased = calibrated_on(options, bias),
                    held = calibrated_on(options, hold);
  const std::int16_t step = step_for_ratio(plain, 16);
  model::passage fresh = model().run(512, 99), far = fresh, constant = fresh;
  bias(far);
  hold(constant);
  const coded_cost of_plain = code_keys(plain, 0, fresh, step), of_biased = code_keys(biased, 0, far, step),
                   of_held = code_keys(held, 0, constant, step);
  CHECK(of_biased.bits == doctest::Approx(of_plain.bits).epsilon(.01));
  CHECK(of_biased.error == doctest::Approx(of_plain.error).epsilon(.02));
  CHECK(of_held.bits < of_plain.bits);
  CHECK(of_held.error < 1.02 * of_plain.error);
}

TEST_CASE("a calibration of no variance at all codes its rows") {
  const auto still = [](model::passage& p) {
    for (std::size_t i = 0; i < p.keys.size(); ++i) p.keys[i] = static_cast<float>(i % 64) / 4 - 8;
  };
  const calibration c = calibrated_on({.spans = whole_model(4, 2), .rank = 5}, still);
  CHECK(check_calibration(c).ok());
  model::passage fresh = model().run(64, 99);
  still(fresh);
  const coded_cost cost = code_keys(c, 0, fresh, -1000);
  CHECK(cost.error < 1e-6);
  CHECK(cost.bits < 40);
}

TEST_CASE("spans have names") {
  CHECK(span_name(blocks_of_layers(9, 4, 3)[1], 4, true) == "K of layers 3-5");
  CHECK(span_name(with_heads(single_layers(9, 4), 2, 2)[7], 4, false) == "V of layer 7, heads 2-3");
  CHECK(span_name(classes_of_layers(std::vector<int>{0, 1, 0, 0}, 4)[0], 4, true) == "K of 3 layers from 0");
}
