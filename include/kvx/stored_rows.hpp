#pragma once
// Rows between the pages of a host cache and the dense arrays that codecs and frames take, and what is the same for both directions.

#include <kvx/backend/host.hpp>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/frame.hpp>
#include <kvx/codec/host/calibrated.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/status.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx {

/// Calls f(i, from or to, at, bytes) for the rows of some tokens and heads of one layer: where each lies in the pages and in a dense array.
///
/// shapes      dense (count, .., heads, dim), `pitch` elements from token to token
template <class E, class F>
void for_each_row(const row_view<E>& rows, row_part part, const std::int32_t* pages, std::int64_t first, std::int64_t count,
                  std::int64_t first_head, std::int64_t heads, std::int64_t pitch, const F& f) {
  const row_array<E>& array = part == row_part::key ? rows.key : rows.value;
  const std::int64_t dim = part == row_part::key ? rows.key_dim : rows.value_dim;
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t position = first + t, page = pages[position / rows.page_tokens];
    for (std::int64_t h = 0; h < heads; ++h)
      f(array.at(page, first_head + h, position % rows.page_tokens), t * pitch + h * dim, static_cast<std::size_t>(dim) * sizeof(E));
  }
}

/// Copies rows of tokens [first, first + count) to a dense array.
template <class E>
void read_rows(const row_view<E>& rows, row_part part, const std::int32_t* pages, std::int64_t first, std::int64_t count,
               std::int64_t first_head, std::int64_t heads, std::remove_const_t<E>* to, std::int64_t pitch) {
  for_each_row(rows, part, pages, first, count, first_head, heads, pitch,
               [&](const E* row, std::int64_t at, std::size_t bytes) { std::memcpy(to + at, row, bytes); });
}

/// Copies rows from a dense array, at any alignment, to their pages.
template <class E>
void write_rows(const row_view<E>& rows, row_part part, const std::int32_t* pages, std::int64_t first, std::int64_t count,
                std::int64_t first_head, std::int64_t heads, const std::byte* from, std::int64_t pitch) {
  for_each_row(rows, part, pages, first, count, first_head, heads, pitch, [&](E* row, std::int64_t at, std::size_t bytes) {
    std::memcpy(row, from + at * static_cast<std::int64_t>(sizeof(E)), bytes);
  });
}

/// Calls body(i), which gives a status, for every i in [0, tasks); the status of the lowest i that is not ok. What a body throws is thrown
/// again when all are done, of the lowest i too.
template <class Body>
status for_each_checked(const host& exec, std::int64_t tasks, const Body& body) {
  std::vector<status> states(static_cast<std::size_t>(tasks));
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(tasks));
  for_each_task(exec, tasks, [&](std::int64_t i) {
    try {
      states[static_cast<std::size_t>(i)] = body(i);
    } catch (...) {
      thrown[static_cast<std::size_t>(i)] = std::current_exception();
    }
  });
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (thrown[i] != nullptr) std::rethrow_exception(thrown[i]);
    if (!states[i].ok()) return states[i];
  }
  return {};
}

/// The number of an element type in a frame.
template <element E>
inline constexpr std::uint8_t element_number = std::same_as<E, float>  ? 0
                                               : std::same_as<E, half> ? 1
                                                                       : 2;

/// What all frames of a cache say of it; tokens aside.
template <class Spec>
frame_header header_of(const cache_parts<Spec>& of) {
  using layout = typename Spec::layout_type;
  frame_header h;
  h.model = of.geometry.model;
  h.calibration = calibration_of(of.spec.codec);
  h.layers = static_cast<std::uint32_t>(of.geometry.layers);
  h.kv_heads = static_cast<std::uint32_t>(of.geometry.kv_heads);
  h.key_dim = static_cast<std::uint32_t>(layout::shape.key_dim);
  h.value_dim = static_cast<std::uint32_t>(layout::shape.value_dim);
  h.page_tokens = static_cast<std::uint32_t>(layout::shape.tokens);
  h.sink = static_cast<std::uint32_t>(Spec::zones.sink);
  h.element = element_number<typename layout::element_type>;
  h.codec = static_cast<std::uint8_t>(kind_of(of.spec.codec));
  return h;
}

/// What ids of the tokens of a frame foretell, for all of its chunks; nothing where the codec predicts nothing.
template <class Codec>
class predicted_inputs {
 public:
  predicted_inputs() = default;
  predicted_inputs(const host&, const Codec&, std::span<const std::int32_t>) {}
  const float* of(row_part, std::int64_t) const { return nullptr; }
};

template <class Chain>
class predicted_inputs<calibrated<Chain>> {
 public:
  predicted_inputs() = default;
  predicted_inputs(const host& exec, const calibrated<Chain>& codec, std::span<const std::int32_t> ids) {
    const calibrated_model& model = *codec.model;
    if (!model.of().predicted()) return;
    for (const row_part part : {row_part::key, row_part::value}) {
      const token_predictor& p = model.predictor(part);
      if (p.empty()) continue;
      part_inputs& to = inputs_[static_cast<std::size_t>(part)];
      to.rank = p.rank;
      constexpr std::size_t together = 1024;  // tokens whose embeddings are in memory at once
      std::vector<float> embeddings((together + 1) * static_cast<std::size_t>(p.embedding));
      for (std::size_t first = 0; first < ids.size(); first += together) {
        const std::size_t count = std::min(together, ids.size() - first), before = first > 0 ? 1 : 0;
        codec.embeddings.run(codec.embeddings.context, ids.subspan(first - before, count + before),
                             embeddings.data() + static_cast<std::size_t>(p.embedding) * (1 - before));
        const std::vector<float> some =
            predictor_inputs(exec, codec.product, p, embeddings.data(), static_cast<std::int64_t>(count), first == 0);
        to.values.insert(to.values.end(), some.begin(), some.end());
      }
    }
  }

  /// Inputs of the tokens from `token` of the frame on; null without a predictor of the part.
  const float* of(row_part part, std::int64_t token) const {
    const part_inputs& from = inputs_[static_cast<std::size_t>(part)];
    return from.rank == 0 ? nullptr : from.values.data() + token * from.rank;
  }

 private:
  struct part_inputs {
    std::int64_t rank = 0;
    std::vector<float> values;  // (tokens, rank)
  };
  part_inputs inputs_[2];
};

}  // namespace kvx
