#pragma once
// Calibration as a whole: rows of passages go in, in one pass; bases, scales, plans, the map from tokens and a report come out.

#include <kvx/calibrate/calibration_options.hpp>
#include <kvx/calibrate/held_out.hpp>
#include <kvx/calibrate/moments.hpp>
#include <kvx/calibrate/principal_components.hpp>
#include <kvx/calibrate/report.hpp>
#include <kvx/calibrate/span_fit.hpp>
#include <kvx/calibrate/step_costs.hpp>
#include <kvx/calibrate/token_regression.hpp>
#include <kvx/codec/calibration.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvx {

/// Called as work goes on: what is done, and how far, 0 to 1.
using calibration_progress = std::function<void(std::string_view what, double done)>;

/// Streaming calibration of one model.
///
/// what        covariances of K and V of each span, and their regression on the embeddings of tokens, in one pass; weights, bases, scales
///             and costs from them in `finish`
/// cost        a token: F^2 / spans + 2 E F multiply-adds. Memory: 4 bytes of F^2 / spans + 2 E F, and held-out rows; 250 MB for 11,520
///             features in three spans of K and of V, and an embedding of 576
/// errors      usage_error: shapes. Tokens with a number that is not finite are left out and counted
class calibrator {
 public:
  calibrator(const calibration_shape& shape, calibration_options options, std::int64_t embedding = 0, call_site where = call_site::here())
      : shape_(shape), options_(std::move(options)), embedding_(embedding), held_(options_.held_out) {
    require_range("layers", shape.layers, 1, 1 << 16, where);
    require_range("KV heads", shape.kv_heads, 1, 1 << 12, where);
    require_range("key dim", shape.key_dim, 1, 576, where);
    require_range("value dim", shape.value_dim, 1, 576, where);
    require_range("sinks", options_.sinks, 0, 1 << 20, where);
    require_range("newest", options_.newest, 0, 1 << 30, where);
    require_range("tokens of a piece that is held out", options_.held_out.piece, 1, 1 << 30, where);
    require_range("embedding", embedding, 0, 1 << 20, where);
    require(options_.turn_of_layer.size() == (options_.turns.empty() ? 0 : static_cast<std::size_t>(shape.layers)),
            "calibrator: a rotary embedding a layer, or none at all", where);
    for (const std::uint16_t t : options_.turn_of_layer)
      require_range("turn_of_layer", t, 0, static_cast<std::int64_t>(options_.turns.size()) - 1, where);
    for (const rope& r : options_.turns) require_range("rotary dims", r.pairs.dims, 0, shape.key_dim, where);
    require(!options_.turned_keys || !options_.turns.empty(), "calibrator: turned_keys without the turns to undo", where);
    if (options_.spans.empty()) options_.spans = blocks_of_layers(shape.layers, shape.kv_heads, std::min(3, shape.layers), where);
    for (const feature_span& s : options_.spans) {
      require(!s.layers.empty() && s.heads > 0 && s.first_head >= 0 && s.first_head + s.heads <= shape.kv_heads,
              "calibrator: a span holds layers and heads of the model", where);
      for (const std::int32_t l : s.layers) require_range("layer of a span", l, 0, shape.layers - 1, where);
      keys_.seen.emplace_back(s.features(shape.key_dim), where);
      values_.seen.emplace_back(s.features(shape.value_dim), where);
    }
    keys_.dim = shape.key_dim;
    values_.dim = shape.value_dim;
    if (predicts()) {
      inputs_.emplace(2 * embedding, where);
      keys_.regression.emplace(2 * embedding, features(keys_), where);
      values_.regression.emplace(2 * embedding, features(values_), where);
    }
  }

  /// Adds tokens of a passage; passages follow each other, their tokens in order, cut anywhere.
  void add(const host& exec, const passage_rows& rows, call_site where = call_site::here());

  std::int64_t tokens() const { return keys_.seen.front().count(); }
  std::int64_t held_out() const { return held_.count(); }
  std::int64_t left_out() const { return left_out_; }

  /// Fits. Weights of K (L, H, D) and V (L, H, Dv), or empty: see sensitivity.
  calibration finish(const host& exec, std::span<const float> key_weights = {}, std::span<const float> value_weights = {},
                     calibration_report* report = nullptr, const calibration_progress& progress = {},
                     call_site where = call_site::here()) const;

  /// The same calibration with the bit plan of another nominal ratio and its alphabets, both from the held-out tokens.
  ///
  /// errors      usage_error: not a calibration of `finish`, nothing held out
  calibration with_plan(const host& exec, calibration c, double ratio, call_site where = call_site::here()) const;

 private:
  static bool all_finite(const float* x, std::int64_t n) {
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * 0;               // NaN from then on
    return sum == 0;
  }
  void fit_part(const host& exec, const scale_tables& tables, bool is_key, std::span<const float> weights, calibration& c,
                std::vector<fitted_span>& fitted, const calibration_progress& say, call_site where) const;
  calibration_report describe(const calibration& c, const std::vector<fitted_span>& fitted) const;
  std::vector<float> turned_back(const passage_rows& rows, std::int64_t count, call_site where) const;
  row_matrix held_rows(const row_matrix& held, const feature_span& span, std::int64_t dim) const;

  struct part {
    std::int64_t dim = 0;
    std::vector<moments> seen;                                          // one a span
    std::optional<token_regression> regression;                         // of all spans' features, one span after the other
  };

  bool predicts() const { return embedding_ > 0 && options_.predictor_rank > 0; }
  static std::int64_t features(const part& p) {
    std::int64_t sum = 0;
    for (const moments& m : p.seen) sum += m.features();
    return sum;
  }

  calibration_shape shape_;
  calibration_options options_;
  std::int64_t embedding_;
  held_out_rows held_;
  part keys_, values_;
  std::optional<moments> inputs_;
  std::int64_t piece_ = -1;
  std::int64_t left_out_ = 0;
};

/// Keys before RoPE of rows after it.
inline std::vector<float> calibrator::turned_back(const passage_rows& rows, std::int64_t count, call_site where) const {
  std::vector<float> keys(rows.keys.begin(), rows.keys.end());
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < count; ++t) positions.push_back(rows.first_position + t);
  std::vector<rope_turns> turns;
  for (const rope& r : options_.turns) turns.emplace_back(r, positions, where);
  float* key = keys.data();
  for (std::int64_t t = 0; t < count; ++t) {
    for (const std::uint16_t which : options_.turn_of_layer) {
      const rope_turns& of = turns[which];
      for (std::int32_t h = 0; h < shape_.kv_heads; ++h, key += shape_.key_dim) {
        turn_key(key, of.pairs(), of.of(t), of.magnitude(), false);
      }
    }
  }
  return keys;
}

/// Held-out rows of all layers and heads (n, L H D) as the features of a span (n, F).
inline row_matrix calibrator::held_rows(const row_matrix& held, const feature_span& span, std::int64_t dim) const {
  row_matrix rows(held.rows(), span.features(dim));
  for (std::int64_t t = 0; t < held.rows(); ++t) gather_features(span, held.row(t).data(), shape_.kv_heads, dim, rows.row(t).data());
  return rows;
}

inline void calibrator::add(const host& exec, const passage_rows& rows, call_site where) {
  const std::int64_t key_row = shape_.key_features(), value_row = shape_.value_features();
  const std::int64_t count = static_cast<std::int64_t>(rows.keys.size()) / key_row;
  require(
      static_cast<std::int64_t>(rows.keys.size()) == count * key_row && static_cast<std::int64_t>(rows.values.size()) == count * value_row,
      "calibrator: keys are (n, L, H, D) and values (n, L, H, Dv)", where);
  require(!predicts() || (static_cast<std::int64_t>(rows.embeddings.size()) == count * embedding_ &&
                          (rows.previous.empty() || static_cast<std::int64_t>(rows.previous.size()) == embedding_)),
          "calibrator: an embedding a token, and of the one before", where);
  require(rows.first_position >= 0 && rows.passage_tokens >= rows.first_position + count, "calibrator: rows lie within their passage",
          where);
  const std::int64_t width = 2 * embedding_;
  const std::vector<float> unturned = options_.turned_keys ? turned_back(rows, count, where) : std::vector<float>();
  const float* const keys = options_.turned_keys ? unturned.data() : rows.keys.data();
  std::vector<std::int64_t> kept;
  row_matrix z(predicts() ? count : 0, width);
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t position = rows.first_position + t, from_end = rows.passage_tokens - position;
    if (position % held_.piece_length() == 0) ++piece_;
    if (position < options_.sinks || from_end <= options_.newest || (options_.window > 0 && from_end > options_.window)) continue;
    const float* const k = keys + t * key_row;
    const float* const v = rows.values.data() + t * value_row;
    float* const inputs = predicts() ? z.data() + static_cast<std::int64_t>(kept.size()) * width : nullptr;
    bool finite = all_finite(k, key_row) && all_finite(v, value_row);
    if (inputs != nullptr) {
      const float* const here = rows.embeddings.data() + t * embedding_;
      normed_embedding(here, embedding_, inputs);
      normed_embedding(t > 0 ? here - embedding_ : rows.previous.empty() ? nullptr : rows.previous.data(), embedding_, inputs + embedding_);
      finite = finite && all_finite(inputs, width);
    }
    if (!finite) {
      ++left_out_;
    } else if (held_.takes(piece_)) {
      held_.keep(k, key_row, v, value_row, inputs, width);
    } else {
      kept.push_back(t);
    }
  }
  const auto n = static_cast<std::int64_t>(kept.size());
  if (n == 0) return;
  if (predicts()) {
    z.conservativeResize(n, width);
    inputs_->add(exec, z);
  }
  const auto take = [&](part& p, const float* data, std::int64_t pitch) {
    std::int64_t first = 0;
    for (std::size_t s = 0; s < options_.spans.size(); ++s) {
      row_matrix y(n, p.seen[s].features());
      for (std::int64_t i = 0; i < n; ++i) {
        gather_features(options_.spans[s], data + kept[static_cast<std::size_t>(i)] * pitch, shape_.kv_heads, p.dim, y.row(i).data());
      }
      p.seen[s].add(exec, y);
      if (p.regression) p.regression->add(exec, z, y, first);
      first += y.cols();
    }
  };
  take(keys_, keys, key_row);
  take(values_, rows.values.data(), value_row);
}

/// The map from tokens and the bases of K or V; fitted[2 s] is K of span s, fitted[2 s + 1] its V.
inline void calibrator::fit_part(const host& exec, const scale_tables& tables, bool is_key, std::span<const float> weights, calibration& c,
                                 std::vector<fitted_span>& fitted, const calibration_progress& say, call_site where) const {
  const part& p = is_key ? keys_ : values_;
  const double begun = is_key ? 0 : .5;
  std::vector<std::vector<float>> of_span(c.spans.size());              // weights in the order of features
  std::vector<float> joined_weights;
  Eigen::VectorXd mean(features(p));
  std::int64_t first = 0;
  for (std::size_t s = 0; s < c.spans.size(); ++s) {
    const std::int64_t count = p.seen[s].features();
    if (!weights.empty()) {
      of_span[s].resize(static_cast<std::size_t>(count));
      gather_features(c.spans[s], weights.data(), shape_.kv_heads, p.dim, of_span[s].data());
      joined_weights.insert(joined_weights.end(), of_span[s].begin(), of_span[s].end());
    }
    mean.segment(first, count) = p.seen[s].shifted_mean();
    first += count;
  }
  part_prediction prediction;
  regression_map map;
  row_matrix held_inputs;
  if (p.regression) {
    say(is_key ? "map from tokens to K" : "map from tokens to V", begun);
    const std::int64_t rank = std::min({options_.predictor_rank, inputs_->features(), features(p)});
    map = p.regression->fit(exec, *inputs_, mean, joined_weights, rank, options_.ridge, where);
    token_predictor& stored = is_key ? c.key_predictor : c.value_predictor;
    stored = {embedding_, rank, to_halves(map.inputs)};
    prediction = {from_halves(stored.inputs, inputs_->features(), rank), map.kept, inputs_->mean().transpose().cast<float>()};
    if (held_.count() > 0) held_inputs = held_.inputs() * prediction.inputs;
  }
  const row_matrix held = is_key ? held_.keys() : held_.values();
  first = 0;
  for (std::size_t s = 0; s < c.spans.size(); ++s) {
    say(is_key ? "basis of K" : "basis of V", begun + .1 + .4 * static_cast<double>(s) / static_cast<double>(c.spans.size()));
    const std::int64_t count = p.seen[s].features();
    component_search search{.rank = std::min(options_.rank, count), .exact_up_to = options_.exact_up_to};
    if (search.rank == 0 && count > search.exact_up_to) search.rank = count / 3;
    const Eigen::MatrixXf outputs = p.regression ? Eigen::MatrixXf(map.outputs.middleCols(first, count)) : Eigen::MatrixXf();
    fitted[2 * s + (is_key ? 0 : 1)] =
        fit_span(exec, p.seen[s], of_span[s], outputs, prediction, held_rows(held, c.spans[s], p.dim), held_inputs, search, tables);
    first += count;
  }
}

inline calibration calibrator::finish(const host& exec, std::span<const float> key_weights, std::span<const float> value_weights,
                                      calibration_report* report, const calibration_progress& progress, call_site where) const {
  require(tokens() >= 2, "calibrator: at least two tokens come before the fit", where);
  const bool weighted = !key_weights.empty() || !value_weights.empty();
  require(!weighted || (static_cast<std::int64_t>(key_weights.size()) == shape_.key_features() &&
                        static_cast<std::int64_t>(value_weights.size()) == shape_.value_features()),
          "calibrator: a weight a feature of the model, of K and of V", where);
  for (const auto all : {key_weights, value_weights}) {
    for (const float w : all) require(w > 0 && w < infinity, "calibrator: weights are positive and finite", where);
  }
  const calibration_progress say = progress ? progress : [](std::string_view, double) {};
  calibration c;
  c.shape = shape_;
  c.sinks = options_.sinks;
  c.weighted = weighted;
  c.turns = options_.turns;
  c.turn_of_layer = options_.turn_of_layer;
  c.spans = options_.spans;
  const scale_tables tables(c.rounding);
  const std::size_t spans = c.spans.size();
  std::vector<fitted_span> fitted(2 * spans);                           // K and V of each span
  fit_part(exec, tables, true, key_weights, c, fitted, say, where);
  fit_part(exec, tables, false, value_weights, c, fitted, say, where);
  say("costs of steps", .95);
  c.costs = measure_steps(exec, tables, fitted, c.predicted() ? 32 : 0);
  if (options_.rank == 0 && options_.finest_ratio > 0 && !c.costs.empty()) {
    std::int64_t all = 0;
    for (const fitted_span& f : fitted) all += f.basis.features();
    const auto finest = [&](const step_cost& cost) { return 16.0 * static_cast<double>(all) / static_cast<double>(cost.bits); };
    const std::int16_t step = step_for(c, options_.finest_ratio, finest, where);
    for (fitted_span& f : fitted) cut_rank(f, coded_components(f.basis.scales.data(), f.basis.rank(), step));
    std::erase_if(c.costs, [&](const step_cost& cost) { return cost.log2_step < step - scale_units / 8; });
  }
  if (options_.plan_ratio > 0) {
    for (std::size_t i = 0; i < fitted.size(); ++i) {
      say("bit plan", .96 + .04 * static_cast<double>(i) / static_cast<double>(fitted.size()));
      make_plan(exec, fitted[i], options_.plan_ratio, options_.plan_tokens, where);
    }
  }
  if (report != nullptr) *report = describe(c, fitted);
  for (std::size_t s = 0; s < spans; ++s) {
    c.keys.push_back(std::move(fitted[2 * s].basis));
    c.values.push_back(std::move(fitted[2 * s + 1].basis));
  }
  say("done", 1);
  return c;
}

inline calibration calibrator::with_plan(const host& exec, calibration c, double ratio, call_site where) const {
  require(c.shape == shape_ && c.spans == options_.spans, "with_plan: a calibration of other rows", where);
  require(ratio > 0, "with_plan: the ratio is positive", where);
  for (const bool is_key : {true, false}) {
    const row_matrix held = is_key ? held_.keys() : held_.values();
    const token_predictor& predictor = is_key ? c.key_predictor : c.value_predictor;
    row_matrix inputs;
    if (!predictor.empty()) inputs = held_.inputs() * from_halves(predictor.inputs, 2 * predictor.embedding, predictor.rank);
    for (std::size_t s = 0; s < c.spans.size(); ++s) {
      span_basis& basis = (is_key ? c.keys : c.values)[s];
      row_matrix rows = held_rows(held, c.spans[s], is_key ? keys_.dim : values_.dim);
      fitted_span fitted;
      fitted.held.values = coefficients_of(exec, basis, rows, inputs);
      fitted.basis = std::move(basis);
      make_plan(exec, fitted, ratio, options_.plan_tokens, where);
      basis = std::move(fitted.basis);
    }
  }
  return c;
}

inline calibration_report calibrator::describe(const calibration& c, const std::vector<fitted_span>& fitted) const {
  calibration_report report{tokens(), held_.count(), left_out_, {}, {}};
  for (std::size_t i = 0; i < fitted.size(); ++i) {
    const fitted_span& f = fitted[i];
    const feature_span& span = c.spans[i / 2];
    const double held = f.held_energy > 0 ? 1 - f.held.dropped / f.held_energy : 0;
    // Where nothing is held out, the fit's own share: too large by what it has learned by heart.
    const double before = f.held_before > 0 ? f.held_before : f.energy, after = f.held_before > 0 ? f.held_energy : f.left;
    const double predicted = c.predicted() && before > 0 ? 1 - after / before : 0;
    report.spans.push_back(
        {span_name(span, c.shape.kv_heads, i % 2 == 0), f.basis.features(), f.basis.rank(), f.energy, predicted, f.captured, held});
    if (tokens() < 3 * f.basis.features() && i % 2 == 0) {
      report.warnings.push_back(report.spans.back().name + ": fewer than three tokens a feature; six are wanted");
    }
  }
  if (!c.weighted && c.spans.size() > 1) {
    report.warnings.push_back("several spans without sensitivity weights: worse than one span of the whole model at the same ratio");
  }
  if (held_.count() < 256) report.warnings.push_back("fewer than 256 held-out tokens: scales and costs are those of the fit, or uncertain");
  return report;
}

}  // namespace kvx
