#pragma once
// A transform codec with the calibration of a model: what a cache is given to store its rows by.

#include <kvx/codec/calibration.hpp>
#include <kvx/codec/calibration_file.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/level_alphabets.hpp>
#include <kvx/codec/scale_tables.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>
#include <kvx/transform/half_product.hpp>
#include <kvx/transform/matrix_product.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvx {

/// K or V.
enum class row_part : std::uint8_t { key, value };

/// A calibration with what coding by it needs: alphabets, and its fingerprint. Made once, shared by all caches of a model.
///
/// cost        the alphabets of a rounding take some 10 ms; the fingerprint hashes the file
/// errors      usage_error: a calibration that check_calibration finds wrong
class calibrated_model {
 public:
  explicit calibrated_model(calibration c, call_site where = call_site::here()) : of_(std::move(c)), tables_(of_.rounding) {
    const status good = check_calibration(of_);
    require(good.ok(), good.what, where);
    fingerprint_ = kvx::fingerprint(of_);
    for (std::size_t i = 0; i < 2 * of_.spans.size(); ++i) {
      const span_basis& b = basis(i / 2, i % 2 == 0 ? row_part::key : row_part::value);
      levels_.push_back(b.levels.empty() ? level_alphabets({}, {}) : level_alphabets(b.plan, b.levels, where));
    }
  }

  const calibration& of() const { return of_; }
  const digest& fingerprint() const { return fingerprint_; }

  const span_basis& basis(std::size_t span, row_part part) const { return part == row_part::key ? of_.keys[span] : of_.values[span]; }
  const token_predictor& predictor(row_part part) const { return part == row_part::key ? of_.key_predictor : of_.value_predictor; }

  /// What coding a matrix of a span takes; valid as long as this.
  span_model model(std::size_t span, row_part part) const {
    const span_basis& b = basis(span, part);
    span_model m;
    m.basis = b.view();
    m.scales = b.scales.data();
    m.tables = &tables_;
    m.plan = &b.plan;
    m.levels = levels_[2 * span + (part == row_part::key ? 0 : 1)].model();
    return m;
  }

 private:
  calibration of_;
  digest fingerprint_;
  scale_tables tables_;
  std::vector<level_alphabets> levels_;  // (spans, K and V)
};

/// Reads a calibration file to what codecs take; `model` is changed only where all is well.
inline status read_calibrated(std::span<const std::byte> bytes, std::shared_ptr<const calibrated_model>& model) {
  calibration c;
  const status read = read_calibration(bytes, c);
  if (read.ok()) model = std::make_shared<const calibrated_model>(std::move(c));
  return read;
}

/// A borrowed look-up of a model's token embeddings.
///
/// run         writes the embeddings of ids to out (ids, width) as the model holds them; may be called by one thread at a time, and is
///             asked for ids from 0 to vocabulary - 1 alone
/// context     handed to run as it is; it must outlive every call that takes the struct
/// width       floats of an embedding: the calibration must have been made with as many
/// vocabulary  ids of the model
struct token_embeddings {
  void (*run)(void* context, std::span<const std::int32_t> ids, float* out) = nullptr;
  void* context = nullptr;
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;

  bool have(std::span<const std::int32_t> ids) const {
    return std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= 0 && id < vocabulary; });
  }
};

/// The codec slot of a cache whose stored rows are transformed, quantised and entropy-coded.
///
/// what        a chain and what it works with
/// model       made from the calibration file
/// log2_step   of a dead zone: step_for_ratio, step_for_kl, step_for_error of the calibration; a call may say otherwise. Unused by plans
/// product     matrix products; a library's are several times faster than the plain ones (eigen_product.hpp)
/// device_product  of caches on a device: cublas_products of your handle; run null: tiled_products, which need no library
/// embeddings  of the model's tokens, where the calibration predicts rows from them; asked for when saving and when restoring
template <class Chain>
struct calibrated {
  using chain_type = Chain;

  std::shared_ptr<const calibrated_model> model = nullptr;
  std::int16_t log2_step = 0;
  matrix_product product = plain_products();
  half_product device_product = {};
  token_embeddings embeddings = {};
  Chain chain = {};
};

/// errors      usage_error: the calibration predicts rows from embeddings that are not there, or of another width
template <class Chain>
void require_embeddings(const calibrated<Chain>& codec, call_site where) {
  for (const row_part part : {row_part::key, row_part::value}) {
    const token_predictor& p = codec.model->predictor(part);
    if (p.empty()) continue;
    require(codec.embeddings.run != nullptr, "codec: the calibration needs the model's token embeddings", where);
    require_range("codec: width of the token embeddings", codec.embeddings.width, p.embedding, p.embedding, where);
  }
}

/// Digest of the calibration that a codec works with; 0: none.
inline digest calibration_of(const raw&) { return {}; }
template <class Chain>
digest calibration_of(const calibrated<Chain>& codec) {
  return codec.model != nullptr ? codec.model->fingerprint() : digest{};
}

}  // namespace kvx
