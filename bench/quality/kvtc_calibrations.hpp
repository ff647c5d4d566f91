#pragma once
// Calibrations that the bench measures with: read from a folder, or made and kept there.

#include "coded_rows.hpp"

#include <forward_pass.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quality {

/// A calibration and what encoders take of it.
struct kept_calibration {
  std::string name;
  kvx::calibration calibration;
  ready_calibration ready;
  kept_calibration(std::string n, kvx::calibration c) : name(std::move(n)), calibration(std::move(c)), ready(calibration) {}
};

/// The calibrations of these names (see kvtc_calibrations), each <folder>/<name>.kvxcal; those that are missing are made from one forward
/// pass over `tokens` tokens of the texts, written, and their reports printed.
std::vector<std::unique_ptr<kept_calibration>> kvtc_calibrations_of(decode_loop::forward_pass& pass, const kvx::host& exec,
                                                                    const std::string& folder,
                                                                    std::span<const std::vector<decode_loop::token_id>> texts,
                                                                    std::size_t tokens, std::span<const std::string> names);

}  // namespace quality
