#pragma once
// Calibrates a model from passages of text.

#include "forward_pass.hpp"

#include <kvx/calibrate/calibrator.hpp>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace decode_loop {

/// What is asked of a calibration.
///
/// weighted    fold in the model's sensitivity
/// predictor   fit the map from tokens
/// more_plans  nominal ratios of further bit plans for the same fit
struct calibration_request {
  kvx::calibration_options options;
  bool weighted = true;
  bool predictor = true;
  std::vector<double> more_plans = {};
};

/// Passages of `length` tokens, evenly out of each text, `tokens` in all; a text that is too short gives what it has.
std::vector<std::vector<token_id>> draw_passages(std::span<const std::vector<token_id>> texts, std::size_t tokens, std::size_t length);

/// What a calibration looks at.
///
/// fitted      their rows are what bases, scales and the map from tokens are fitted on: many short passages show more kinds of text than
/// few
///             long ones
/// attended    their attention is what the sensitivity is measured on: passages as long as the contexts that will be stored. Where errors
///             spread over thousands of rows, other heads matter than in short ones. Empty, or no request is weighted: the fitted ones
struct calibration_passages {
  std::span<const std::vector<token_id>> fitted;
  std::span<const std::vector<token_id>> attended = {};
};

/// A forward pass over every passage, then the fits: one calibration for each request, all from the same pass; behind it one for each of
/// its further plans.
///
/// progress    progress(what, share done)
/// cost        the passages' forward passes; for 12,000 tokens of SmolLM2 two thirds of the time
std::vector<kvx::calibration> calibrate_model(forward_pass& pass, const kvx::host& exec, const calibration_passages& passages,
                                              std::span<const calibration_request> requests, std::vector<kvx::calibration_report>& reports,
                                              const std::function<void(std::string_view what, double done)>& progress);

}  // namespace decode_loop
