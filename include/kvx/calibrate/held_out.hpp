#pragma once
// Tokens that the fit does not see: those of whole passages, kept as rows, by which scales, plans and costs are measured.

#include <kvx/calibrate/moments.hpp>
#include <kvx/core/random.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvx {

/// Which tokens are held out, and how many are kept.
///
/// every       of so many pieces one is held out, 0: none. Pieces are passages, long ones in lengths of `piece`: a basis learns a text by
///             heart, so tokens of a passage that it has seen are no test (on SmolLM2 they show a third of the error of other texts)
/// most        tokens kept; beyond them each held-out token is kept with equal chance
struct held_out_rule {
  std::int64_t every = 8;
  std::int64_t piece = 1024;
  std::int64_t most = 1536;
};

/// Rows of held-out tokens.
///
/// cost        4 bytes a number of `most` tokens
/// exactness   the same tokens for the same order of rows, however they are cut into calls
class held_out_rows {
 public:
  explicit held_out_rows(const held_out_rule& rule) : rule_(rule) {}

  /// Whether tokens of a piece are held out; pieces are counted over all passages.
  bool takes(std::int64_t piece) const { return rule_.every > 0 && piece % rule_.every == rule_.every - 1; }
  std::int64_t piece_length() const { return rule_.piece; }

  /// Keeps a token: its rows of K (F), of V (G) and its predictor inputs (may be null).
  void keep(const float* keys, std::int64_t key_features, const float* values, std::int64_t value_features, const float* inputs,
            std::int64_t input_count) {
    const auto number = static_cast<std::uint64_t>(seen_);
    const std::int64_t row = seen_ < rule_.most ? seen_ : static_cast<std::int64_t>(random_bits(7, number) % (number + 1));
    ++seen_;
    if (row >= rule_.most) return;
    count_ = std::max(count_, row + 1);
    put(keys_, keys, key_features, row);
    put(values_, values, value_features, row);
    if (inputs != nullptr) put(inputs_, inputs, input_count, row);
  }

  std::int64_t count() const { return count_; }
  row_matrix keys() const { return matrix(keys_); }
  row_matrix values() const { return matrix(values_); }
  row_matrix inputs() const { return matrix(inputs_); }

 private:
  static void put(std::vector<float>& to, const float* from, std::int64_t width, std::int64_t row) {
    const auto end = static_cast<std::size_t>((row + 1) * width);
    if (to.size() < end) to.resize(end);
    std::copy_n(from, width, to.data() + row * width);
  }
  row_matrix matrix(const std::vector<float>& rows) const {
    const std::int64_t width = count_ == 0 ? 0 : static_cast<std::int64_t>(rows.size()) / count_;
    return Eigen::Map<const row_matrix>(rows.data(), width == 0 ? 0 : count_, width);
  }

  held_out_rule rule_;
  std::int64_t seen_ = 0, count_ = 0;
  std::vector<float> keys_, values_, inputs_;
};

}  // namespace kvx
