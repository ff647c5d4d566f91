#pragma once
// A transform codec as three policies, what calibration hands it, and the bytes of a chunk.

#include <kvx/codec/bit_plan.hpp>
#include <kvx/codec/packed.hpp>
#include <kvx/codec/quantize.hpp>
#include <kvx/codec/rans.hpp>
#include <kvx/codec/raw.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/transform/pca.hpp>
#include <kvx/transform/rope.hpp>

#include <concepts>
#include <cstdint>

namespace kvx {

/// What a quantiser leaves can be taken up by an entropy coder: levels of a fixed width by all, others by rans alone.
template <class Quantizer, class Entropy>
inline constexpr bool composes = std::same_as<Quantizer, bit_groups> || std::same_as<Entropy, rans>;

/// Rows to coefficients to symbols to bytes.
///
/// what        chain<pca, dead_zone, rans>: entropy-first, ours; chain<pca, bit_groups, rans or deflate or fixed_width>: the paper's
template <class Transform, class Quantizer, class Entropy>
struct chain {
  static_assert(composes<Quantizer, Entropy>, "kvx: symbols of a dead zone have no fixed width; their entropy coder is kvx::rans");
  Transform transform{};
  Quantizer quantizer{};
  Entropy entropy{};
  friend constexpr bool operator==(const chain&, const chain&) = default;
};
using kvtc_entropy = chain<pca, dead_zone, rans>;
template <class Entropy>
using kvtc_faithful = chain<pca, bit_groups, Entropy>;

/// What ids of tokens foretell of the rows of a chunk, to be taken out before the transform and added after: inputs outputs. A view.
///
/// shapes      inputs (tokens, rank): normed embeddings times the predictor's inputs; outputs (rank, F). rank 0: nothing is foretold
struct span_prediction {
  std::int64_t rank = 0;
  const float* inputs = nullptr;
  const half* outputs = nullptr;
};

/// What calibration knows of one matrix of a span: K or V of a block of layers. A view.
///
/// scales      (rank): for a dead zone
/// tables      the alphabets of its rounding: for a dead zone
/// plan        for bit_groups; it covers at most the rank
/// levels      alphabets of the plan's components: for bit_groups with rans
/// prediction  of the tokens of the chunk at hand
struct span_model {
  pca_basis basis;
  const component_scale* scales = nullptr;
  const scale_tables* tables = nullptr;
  const bit_plan* plan = nullptr;
  symbol_model levels;
  span_prediction prediction;
};

/// How the keys of a span were turned: head h (of all layers of the span, in order) by turns[h], none where it is null. turns null: none at
/// all.
struct span_turns {
  std::int64_t head_dim = 0;
  const rope_turns* const* turns = nullptr;
};

/// What stands in the first byte of a chunk.
enum class chunk_kind : std::uint8_t { rows, step_rans, groups_fixed, groups_deflate, groups_rans };

/// The first eight bytes of a chunk; what follows is the stream, or the rows (tokens, features) as they are.
///
/// order       packing of levels: 0 tokens, 1 components; 0 for other kinds
/// log2_step   of a dead zone, see component_scale; 0 for other kinds
/// components  that are coded; 0 for rows
struct chunk_header {
  chunk_kind kind = chunk_kind::rows;
  std::uint8_t order = 0;
  std::int16_t log2_step = 0;
  std::uint32_t components = 0;
};
static_assert(sizeof(chunk_header) == 8);

/// Bytes that no chunk exceeds: where coding gains nothing, or NaN and infinity forbid it, rows are stored as they are.
template <element E>
constexpr std::int64_t chunk_bound(std::int64_t tokens, std::int64_t features) {
  const std::int64_t rows = checked_product(checked_product(tokens, features), sizeof(E));
  return rows < 0 ? -1 : rows + static_cast<std::int64_t>(sizeof(chunk_header));
}

}  // namespace kvx
