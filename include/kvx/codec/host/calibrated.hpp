#pragma once
// Chunks of calibrated spans on the host: what a span's codec needs to know of a chunk's tokens, and both directions.

#include <kvx/backend/host.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/host/chain.hpp>
#include <kvx/codec/host/page.hpp>
#include <kvx/codec/host/prediction.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace kvx {

/// The kind of chunks that a codec writes where coding gains, by which frames number codecs.
constexpr chunk_kind kind_of(const raw&) { return chunk_kind::rows; }
template <class T, class E>
constexpr chunk_kind kind_of(const chain<T, dead_zone, E>&) {
  return chunk_kind::step_rans;
}
template <class T, class E>
constexpr chunk_kind kind_of(const chain<T, bit_groups, E>& of) {
  return kind_of(of.entropy);
}
template <class Chain>
constexpr chunk_kind kind_of(const calibrated<Chain>& of) {
  return kind_of(of.chain);
}

/// Throws a usage_error unless the calibration holds what the chain codes by.
template <class T, class E>
void require_calibration(const calibrated<chain<T, dead_zone, E>>& codec, call_site where) {
  require(codec.model != nullptr, "codec: it has no calibration", where);
  require(codec.model->of().rounding == codec.chain.quantizer.rounding, "codec: the calibration is of another rounding", where);
}
template <class T, class E>
void require_calibration(const calibrated<chain<T, bit_groups, E>>& codec, call_site where) {
  require(codec.model != nullptr, "codec: it has no calibration", where);
  for (std::size_t s = 0; s < codec.model->of().spans.size(); ++s) {
    for (const row_part part : {row_part::key, row_part::value}) {
      const span_basis& b = codec.model->basis(s, part);
      require(!b.plan.runs.empty(), "codec: the calibration has no bit plan", where);
      require(kind_of(codec) != chunk_kind::groups_rans || std::cmp_equal(b.levels.size(), b.plan.components()),
              "codec: the calibration has no alphabets of levels", where);
    }
  }
}

/// The turns of a span's keys at the positions [first, first + count). Owns what view() refers to.
class turns_of_span {
 public:
  turns_of_span() = default;
  turns_of_span(const calibration& c, std::size_t span, std::int64_t first, std::int64_t count)
      : head_dim_(c.shape.key_dim), turns_(c.turn_of_layer.empty() ? 0 : c.turns.size()) {
    if (c.turn_of_layer.empty()) return;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), first);
    std::vector<bool> made(turns_.size());
    for (const std::int32_t layer : c.spans[span].layers) {
      const std::size_t number = c.turn_of_layer[static_cast<std::size_t>(layer)];
      if (!made[number]) turns_[number] = rope_turns(c.turns[number], positions);
      made[number] = true;
      of_head_.insert(of_head_.end(), static_cast<std::size_t>(c.spans[span].heads), &turns_[number]);
    }
  }
  turns_of_span(turns_of_span&&) noexcept = default;  // the turns stay where they are
  turns_of_span& operator=(turns_of_span&&) noexcept = default;

  span_turns view() const { return {head_dim_, of_head_.empty() ? nullptr : of_head_.data()}; }

 private:
  std::int64_t head_dim_ = 0;
  std::vector<rope_turns> turns_;           // (embeddings of the calibration)
  std::vector<const rope_turns*> of_head_;  // (layers of the span, heads)
};

/// Which chunk: K or V of a span, for the tokens from a position on.
///
/// inputs      (count, rank) of the part's predictor, null where it has none
/// mean        (features) that stands in for the calibration's: that of the text at hand; null: the calibration's
struct span_chunk {
  std::size_t span = 0;
  row_part part = row_part::key;
  std::int64_t position = 0;
  std::int64_t count = 0;
  const float* inputs = nullptr;
  const float* mean = nullptr;
};

/// The model of a chunk, its prediction and mean included.
inline span_model model_of(const calibrated_model& of, const span_chunk& chunk) {
  span_model m = of.model(chunk.span, chunk.part);
  if (!of.predictor(chunk.part).empty())
    m.prediction = {of.predictor(chunk.part).rank, chunk.inputs, of.basis(chunk.span, chunk.part).outputs.data()};
  if (chunk.mean != nullptr) m.basis.mean = chunk.mean;
  return m;
}
inline turns_of_span turns_of(const calibrated_model& of, const span_chunk& chunk) {
  return chunk.part == row_part::key ? turns_of_span(of.of(), chunk.span, chunk.position, chunk.count) : turns_of_span();
}

/// Rows (count, features of the span) to a chunk; see encode_chunk.
template <class Chain, element E>
status encode_span(const host& exec, const calibrated<Chain>& codec, const span_chunk& chunk, const tensor_view<const E, 2>& rows,
                   int log2_step, std::vector<std::byte>& out) {
  const turns_of_span turns = turns_of(*codec.model, chunk);
  std::int64_t bytes = 0;
  out.resize(static_cast<std::size_t>(chunk_bound<E>(rows.extents[0], rows.extents[1])));
  const status s = encode_chunk(exec, codec.product, codec.chain, model_of(*codec.model, chunk), rows, turns.view(), log2_step, out, bytes);
  out.resize(static_cast<std::size_t>(bytes));
  return s;
}

/// Codecs whose chunks fit any size, by their step.
template <class Codec>
inline constexpr bool has_step = false;
template <class T, class E>
inline constexpr bool has_step<calibrated<chain<T, dead_zone, E>>> = true;

/// Rows (count, features of the span) to a page of page.size() bytes; see encode_page.
template <class Chain, element E>
status encode_span_page(const host& exec, const calibrated<Chain>& codec, const span_chunk& chunk, const tensor_view<const E, 2>& rows,
                        int log2_step, std::span<std::byte> page) {
  const turns_of_span turns = turns_of(*codec.model, chunk);
  return encode_page(exec, codec.product, codec.chain, model_of(*codec.model, chunk), rows, turns.view(), log2_step, page);
}

/// A chunk of a span whose entropy coding is undone, to be restored layer by layer.
template <element E>
struct opened_span {
  span_chunk of;
  opened_chunk<E> chunk;
  turns_of_span turns;
};

/// Undoes the entropy coding; `bytes` must outlive the result where they hold rows.
template <class Chain, element E>
status open_span(const host& exec, const calibrated<Chain>& codec, const span_chunk& chunk, std::span<const std::byte> bytes,
                 opened_span<E>& opened) {
  const span_model model = codec.model->model(chunk.span, chunk.part);
  const status s = open_chunk(exec, codec.chain, model, bytes, chunk.count, model.basis.features, opened.chunk);
  if (!s.ok()) return s;
  opened.of = chunk;
  if (opened.chunk.header.kind != chunk_kind::rows) opened.turns = turns_of(*codec.model, chunk);
  return {};
}

/// The rows of one layer, the i-th of the span.   rows (count, heads of the span x dim)
template <class Chain, element E>
void restore_layer(const host& exec, const calibrated<Chain>& codec, const opened_span<E>& opened, std::int64_t i,
                   const tensor_view<E, 2>& rows) {
  restore_rows(exec, codec.product, model_of(*codec.model, opened.of), opened.chunk, opened.turns.view(), i * rows.extents[1], rows);
}

}  // namespace kvx
