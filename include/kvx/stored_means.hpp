#pragma once
// The means of its own text that a frame keeps, K and V of each block, as chunks are coded and decoded by them.

#include <kvx/codec/calibrated.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/stored_blocks.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// Of codecs without a calibration: none.
template <class Codec>
class frame_means {
 public:
  const float* of(std::size_t, row_part) const { return nullptr; }
};

/// Of calibrated ones: those that the frame has.
template <class Chain>
class frame_means<calibrated<Chain>> {
 public:
  /// The mean that stands in for the calibration's in the chunks of a block; null: there is none. See span_chunk.
  const float* of(std::size_t block, row_part part) const {
    const std::size_t at = 2 * block + static_cast<std::size_t>(part);
    return at < means_.size() && !means_[at].empty() ? means_[at].data() : nullptr;
  }

  /// Takes the payload of a section.
  ///
  /// shapes      bytes: halves (F), see text_mean
  /// exactness   one addition of floats: the same where it is written and where it is read
  /// errors      corrupt: NaN or infinity
  status take(const calibrated_model& model, const stored_block& block, std::size_t number, row_part part,
              std::span<const std::byte> bytes) {
    const std::vector<float>& known = model.basis(static_cast<std::size_t>(block.span), part).mean;
    std::vector<float> mean(known.size());
    for (std::size_t f = 0; f < mean.size(); ++f) {
      half beside;
      std::memcpy(&beside, bytes.data() + f * sizeof beside, sizeof beside);
      if (!std::isfinite(to_float(beside))) return {status::code::corrupt, "frame: a mean"};
      mean[f] = known[f] + to_float(beside);
    }
    const std::size_t at = 2 * number + static_cast<std::size_t>(part);
    if (means_.size() <= at) means_.resize(at + 1);
    means_[at] = std::move(mean);
    return {};
  }

 private:
  std::vector<std::vector<float>> means_;  // (blocks, K and V)
};

}  // namespace kvx
