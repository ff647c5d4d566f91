#pragma once
// Whether a calibration still fits the texts that one has.

#include "forward_pass.hpp"

#include <kvx/calibrate/drift.hpp>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace decode_loop {

/// A forward pass over every passage; what a codec would code of its rows, beside what the calibration expects.
///
/// progress    progress(what, share done)
/// cost        the passages' forward passes; 4 bytes a number of their rows
kvx::drift_report drift_on(forward_pass& pass, const kvx::host& exec, std::span<const std::vector<token_id>> passages,
                           const kvx::calibration& calibration, const std::function<void(std::string_view what, double done)>& progress);

}  // namespace decode_loop
