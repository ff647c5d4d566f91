#pragma once
// Caches whose prompts are stored by the transform codec: where their calibrations lie.

#include "model.hpp"

#include <kvx/codec/calibrated.hpp>

#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace decode_loop {

/// Calibrations in a folder, <name>.kvxcal, each read once, and the model whose embeddings they ask for.
class codec_files {
 public:
  codec_files(std::string folder, const model& weights) : folder_(std::move(folder)), weights_(weights) {}

  static bool has(const std::string& folder, std::string_view name);

  /// errors      file_error: a file that cannot be read, or is no calibration of this model
  std::shared_ptr<const kvx::calibrated_model> get(std::string_view name) const;

  kvx::token_embeddings embeddings() const;

 private:
  std::string folder_;
  const model& weights_;
  mutable std::map<std::string, std::shared_ptr<const kvx::calibrated_model>, std::less<>> read_;
};

}  // namespace decode_loop
