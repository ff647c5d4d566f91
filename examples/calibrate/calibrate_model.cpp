#include "calibrate_model.hpp"

#include "caches.hpp"
#include "comparison.hpp"
#include "passage_observer.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace decode_loop {

std::vector<std::vector<token_id>> draw_passages(std::span<const std::vector<token_id>> texts, std::size_t tokens, std::size_t length) {
  std::vector<std::vector<token_id>> passages;
  const std::size_t wanted = std::max<std::size_t>(1, tokens / std::max<std::size_t>(1, texts.size()));
  const std::size_t most = (wanted + length - 1) / length;
  for (std::size_t i = 0; i < most; ++i) {                              // in turns: what is held out is of every text
    for (const auto& text : texts) {
      const std::size_t size = std::min({length, wanted, text.size()}), count = size == 0 ? 0 : std::min(most, text.size() / size);
      if (i >= count) continue;
      const std::size_t first = count == 1 ? 0 : i * (text.size() - size) / (count - 1);
      passages.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(first), text.begin() + static_cast<std::ptrdiff_t>(first + size));
    }
  }
  return passages;
}

std::vector<kvx::calibration> calibrate_model(forward_pass& pass, const kvx::host& exec, const calibration_passages& passages,
                                              std::span<const calibration_request> requests, std::vector<kvx::calibration_report>& reports,
                                              const std::function<void(std::string_view what, double done)>& progress) {
  const model& weights = pass.weights();
  kvx::sensitivity attention(attention_of(weights.shape));
  observe_projections(attention, weights);
  std::vector<kvx::calibrator> calibrators;
  for (const calibration_request& r : requests) {
    kvx::calibration_options options = r.options;
    options.turns = {rope_of(weights.shape)};
    options.turn_of_layer.assign(weights.shape.layers, 0);
    calibrators.emplace_back(rows_of(weights.shape), options, r.predictor ? static_cast<std::int64_t>(weights.shape.embedding) : 0);
  }
  const bool weighs = std::any_of(requests.begin(), requests.end(), [](const calibration_request& r) { return r.weighted; });
  const auto attended = weighs ? passages.attended : std::span<const std::vector<token_id>>();
  std::size_t longest = 0, tokens = 0, done = 0;
  for (const auto& some : {passages.fitted, attended}) {
    for (const auto& p : some) {
      longest = std::max(longest, p.size());
      tokens += p.size();
    }
  }
  const auto cache = make_reference(exec, request_for(weights.shape, longest, pass.most_tokens(), 0));
  const auto observe = [&](std::span<const std::vector<token_id>> some, std::span<kvx::calibrator> rows, std::size_t queries) {
    for (const auto& p : some) {
      cache->clear();
      progress("passages", static_cast<double>(done) / static_cast<double>(tokens));
      passage_observer(pass, rows, attention, queries).run(exec, *cache, p, {.sinks = 4, .newest = 64});
      done += p.size();
    }
  };
  observe(passages.fitted, calibrators, weighs && attended.empty() ? 8 : 0);
  observe(attended, {}, 64);
  progress("passages", 1);
  std::vector<float> key_weights, value_weights;
  if (weighs) {
    key_weights = attention.key_weights();
    value_weights = attention.value_weights();
  }
  std::vector<kvx::calibration> fitted;
  reports.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const bool weighted = requests[i].weighted;
    reports.emplace_back();
    fitted.push_back(calibrators[i].finish(exec, weighted ? std::span<const float>(key_weights) : std::span<const float>(),
                                           weighted ? std::span<const float>(value_weights) : std::span<const float>(), &reports.back(),
                                           progress));
    const std::size_t fit = fitted.size() - 1;
    for (const double ratio : requests[i].more_plans) {
      fitted.push_back(calibrators[i].with_plan(exec, fitted[fit], ratio));
      reports.push_back(reports.back());
    }
  }
  return fitted;
}

}  // namespace decode_loop
