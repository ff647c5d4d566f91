#pragma once
// What calibration is asked for, and the rows that it is shown.

#include <kvx/calibrate/held_out.hpp>
#include <kvx/codec/feature_span.hpp>
#include <kvx/transform/rope.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace kvx {

/// What is calibrated, and how finely.
///
/// spans           empty: a third of the layers each
/// sinks, newest   first and last positions of a passage, which a codec leaves raw
/// window          rows older than so many positions before a passage's end are neither read by a later token nor stored; 0: all are
/// rank            components kept of a span, 0: those whose scale reaches the rank cut under the finest step of `finest_ratio`
/// predictor_rank  of the map from tokens, 0: none
/// plan_ratio      nominal ratio of the faithful plan, 0: no plan; made from `plan_tokens` held-out tokens
/// exact_up_to     features up to which components are computed without sampling
/// turns, turn_of_layer   rotary embeddings that occur, and which one each layer has; none: keys do not turn
/// turned_keys     the keys that come are those of a cache, after RoPE, and are turned back first
struct calibration_options {
  std::vector<feature_span> spans = {};
  std::int64_t sinks = 4;
  std::int64_t newest = 32;
  std::int64_t window = 0;
  std::int64_t rank = 0;
  double finest_ratio = 12;
  std::int64_t predictor_rank = 256;
  double ridge = .1;
  double plan_ratio = 0;
  std::int64_t plan_tokens = 128;
  std::int64_t exact_up_to = 2048;
  held_out_rule held_out = {};
  std::vector<rope> turns = {};
  std::vector<std::uint16_t> turn_of_layer = {};
  bool turned_keys = false;
};

/// Rows of consecutive tokens of one passage, all layers of each.
///
/// shapes      keys (n, L, H, D) before RoPE unless the options say turned_keys, values (n, L, H, Dv); embeddings (n, E) of the tokens,
///             previous (E) of the one before the first of them, empty at the start of a passage; embeddings empty where nothing is
///             predicted
struct passage_rows {
  std::int64_t first_position = 0;
  std::int64_t passage_tokens = 0;
  std::span<const float> keys;
  std::span<const float> values;
  std::span<const float> embeddings = {};
  std::span<const float> previous = {};
};

}  // namespace kvx
