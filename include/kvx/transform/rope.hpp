#pragma once
// Rotary position embeddings, to be undone before keys are transformed and done again after: frequencies of the usual variants, and turns.

#include <kvx/core/annotate.hpp>
#include <kvx/core/check.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

namespace kvx {

/// How a model turns its keys; the names of its configuration file in brackets.
///
/// pairs             which channels, and how many of them [partial_rotary_factor * head_dim]
/// base              [rope_theta]
/// scaling           linear: positions divided by `factor`; llama3: low frequencies divided, with a smooth passage between two wavelengths;
///                   yarn: the same between two numbers of turns, and keys longer by `magnitude`
/// original_tokens   context that the model was trained on first [original_max_position_embeddings]
/// magnitude         what YaRN multiplies cosines and sines by [attention_factor]; 0: 0.1 ln(factor) + 1. 1 for the others
/// source            Su et al. 2021; Llama 3.1; Peng et al. 2023 (YaRN), as transformers computes them
struct rope {
  enum class scaling : std::uint8_t { none, linear, llama3, yarn };

  rope_pairs pairs;
  double base = 10000;
  scaling scaled = scaling::none;
  double factor = 1;
  std::int64_t original_tokens = 8192;
  double low_frequency = 1, high_frequency = 4;  ///< llama3 [low_freq_factor, high_freq_factor]
  double fast_turns = 32, slow_turns = 1;  ///< yarn [beta_fast, beta_slow]
  double magnitude = 0;

  friend constexpr bool operator==(const rope&, const rope&) = default;
};

/// Length of a turned key over that of the key.
inline double rope_magnitude(const rope& r) {
  if (r.scaled != rope::scaling::yarn) return 1;
  if (r.magnitude > 0) return r.magnitude;
  return r.factor > 1 ? 0.1 * std::log(r.factor) + 1 : 1;
}

/// Radians a position for each pair, pairs.dims / 2 of them.
///
/// exactness   double; models compute in float, so turns differ from theirs by the error of a float angle, which undoing and redoing share
/// errors      usage_error: odd or negative dims, numbers out of their range
inline std::vector<double> rope_frequencies(const rope& r, call_site where = call_site::here()) {
  if (r.pairs.channels == rope_pairs::order::none) return {};
  require(r.pairs.dims >= 0 && r.pairs.dims % 2 == 0, "rope: an even number of channels turns", where);
  require(r.base > 1 && r.factor >= 1 && r.original_tokens > 0, "rope: base above 1, factor and context at least 1", where);
  require(r.scaled != rope::scaling::llama3 || r.high_frequency > r.low_frequency, "rope: high_frequency is above low_frequency", where);
  require(r.scaled != rope::scaling::yarn || (r.fast_turns >= r.slow_turns && r.slow_turns > 0), "rope: fast_turns is at least slow_turns",
          where);
  const int pairs = r.pairs.dims / 2;
  const auto tokens = static_cast<double>(r.original_tokens);
  // The pair that turns so many times within the original context, as a fraction.
  const auto pair_of_turns = [&](double turns) {
    return r.pairs.dims * std::log(tokens / (turns * 2 * std::numbers::pi)) / (2 * std::log(r.base));
  };
  const double first = std::max(std::floor(pair_of_turns(r.fast_turns)), 0.0);
  double last = std::min(std::ceil(pair_of_turns(r.slow_turns)), r.pairs.dims - 1.0);
  if (last <= first) last = first + 0.001;
  std::vector<double> frequencies;
  for (int i = 0; i < pairs; ++i) {
    const double plain = std::pow(r.base, -2.0 * i / r.pairs.dims);
    double kept = 1;  // how much of the plain frequency stays
    if (r.scaled == rope::scaling::linear) kept = 0;
    if (r.scaled == rope::scaling::llama3) {
      const double turns = tokens * plain / (2 * std::numbers::pi);
      kept = std::clamp((turns - r.low_frequency) / (r.high_frequency - r.low_frequency), 0.0, 1.0);
    }
    if (r.scaled == rope::scaling::yarn) kept = 1 - std::clamp((i - first) / (last - first), 0.0, 1.0);
    frequencies.push_back((1 - kept) * plain / r.factor + kept * plain);
  }
  return frequencies;
}

/// Cosines and sines of some positions, for every layer that turns alike.
///
/// shapes      positions (T); turns (T, pairs), cosine and sine side by side
/// cost        one cosine and sine a position and pair; 8 bytes
class rope_turns {
 public:
  rope_turns() = default;
  rope_turns(const rope& r, std::span<const std::int64_t> positions, call_site where = call_site::here())
      : pairs_(r.pairs), magnitude_(rope_magnitude(r)) {
    const std::vector<double> frequencies = rope_frequencies(r, where);
    width_ = 2 * frequencies.size();
    turns_.reserve(positions.size() * width_);
    for (const std::int64_t position : positions) {
      for (const double f : frequencies) {
        const double angle = static_cast<double>(position) * f;
        turns_.push_back(static_cast<float>(std::cos(angle)));
        turns_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }

  const rope_pairs& pairs() const { return pairs_; }
  double magnitude() const { return magnitude_; }
  std::int64_t tokens() const { return width_ == 0 ? 0 : static_cast<std::int64_t>(turns_.size() / width_); }
  const float* of(std::int64_t t) const { return turns_.data() + static_cast<std::size_t>(t) * width_; }

 private:
  rope_pairs pairs_;
  double magnitude_ = 1;
  std::size_t width_ = 0;
  std::vector<float> turns_;
};

/// Turns a pair of channels by an angle, and makes it longer.
///
/// exactness   products are exact in double: one rounding to double, one to float, wherever it runs
KVX_HD constexpr void turn_pair(float& a, float& b, float cosine, float sine, double magnitude) {
  const double x = a, y = b, c = cosine, s = sine;
  a = static_cast<float>(magnitude * (x * c - y * s));
  b = static_cast<float>(magnitude * (x * s + y * c));
}

/// Does (forwards) or undoes (backwards) the turn of one key.
///
/// shapes      key (D), D at least pairs.dims; turns (pairs, 2) of its position
/// exactness   undoing what was done gives the key back within 2^-22 of its length in each pair
KVX_HD constexpr void turn_key(float* key, const rope_pairs& pairs, const float* turns, double magnitude, bool forwards) {
  if (pairs.channels == rope_pairs::order::none) return;
  const int count = pairs.dims / 2;
  const bool interleaved = pairs.channels == rope_pairs::order::interleaved;
  for (int i = 0; i < count; ++i) {
    const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + count;
    turn_pair(key[first], key[second], turns[2 * i], forwards ? turns[2 * i + 1] : -turns[2 * i + 1], forwards ? magnitude : 1 / magnitude);
  }
}

static_assert([] {
  float key[5] = {1, 2, 3, 4, 5};
  const float quarter[4] = {0, 1, 1, 0};  // a quarter turn, none
  turn_key(key, {rope_pairs::order::halves, 4}, quarter, 1, true);
  const bool turned = key[0] == -3 && key[2] == 1 && key[1] == 2 && key[3] == 4 && key[4] == 5;
  turn_key(key, {rope_pairs::order::halves, 4}, quarter, 1, false);
  return turned && key[0] == 1 && key[2] == 3;
}());

}  // namespace kvx
