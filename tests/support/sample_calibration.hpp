#pragma once
// A small calibration with every part that a file may hold, and files whose checksums agree with their damage.

#include <kvx/codec/calibration_file.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace kvx::test {

/// The same bits from every compiler: whole numbers, halves and quarters.
///
/// everything  with weights, predictors, plans and alphabets
inline calibration sample_calibration(bool everything) {
  std::mt19937 random(2);
  calibration c;
  c.shape = {.layers = 3, .kv_heads = 2, .key_dim = 4, .value_dim = 2};
  c.turns = {rope{.pairs = {rope_pairs::order::halves, 4}, .base = 5e5}};
  c.turn_of_layer = {0, 0, 0};
  c.weighted = everything;
  c.spans = blocks_of_layers(3, 2, 2);
  for (std::size_t s = 0; s < 2; ++s) {
    for (const bool is_key : {true, false}) {
      span_basis b;
      const auto features = static_cast<std::size_t>(c.spans[s].features(is_key ? 4 : 2));
      const std::size_t rank = 3;
      for (std::size_t i = 0; i < features; ++i) b.mean.push_back(static_cast<float>(random() % 100));
      for (std::size_t i = 0; i < features * rank; ++i) b.basis.push_back(round_to<half>(static_cast<float>(random() % 100) / 100));
      for (std::size_t i = 0; i < rank; ++i) b.scales.push_back({static_cast<std::int16_t>(100 - 40 * i), static_cast<std::uint8_t>(i)});
      if (everything) {
        b.weights.assign(features, .5f);
        b.outputs.assign(features * 2, half{0x3c00});
        b.plan.runs = {{1, 4}, {1, 2}};
        symbol_frequencies f;
        f.of[0] = 4096;
        b.levels = {f, f};
      }
      (is_key ? c.keys : c.values).push_back(b);
    }
  }
  if (everything) {
    c.key_predictor = {5, 2, std::vector<half>(20, half{0x3800})};
    c.value_predictor = c.key_predictor;
  }
  c.costs = {{-300, 0, 50, 1, 2}, {-200, 0, 30, 2, 4}, {-100, 0, 20, 4, 8}};
  return c;
}

/// Makes the checksum that of the body, whatever happened to it.
inline void mend_calibration(std::span<std::byte> file) {
  calibration_file_header header;
  if (file.size() < sizeof header) return;
  std::memcpy(&header, file.data(), sizeof header);
  header.body_bytes = file.size() - sizeof header;
  header.body_checksum = checksum(file.subspan(sizeof header));
  std::memcpy(file.data(), &header, sizeof header);
}

}  // namespace kvx::test
