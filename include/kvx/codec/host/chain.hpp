#pragma once
// Chunks on the host: rows to bytes and back, coefficients to bytes and back.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/convert.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/codec/host/packed.hpp>
#include <kvx/codec/host/prediction.hpp>
#include <kvx/codec/host/rans.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>
#include <kvx/transform/host/pca.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx {

/// Codes levels of a bit plan; the coders find each other by the name of this function. Writes the stream after the header.
inline status encode_levels(const host& exec, const fixed_width& coder, const span_model& model,
                            const component_matrix<const std::int16_t>& levels, std::span<const run_range> ranges, std::span<std::byte> out,
                            chunk_header& header, std::int64_t& bytes) {
  header.kind = chunk_kind::groups_fixed;
  header.order = static_cast<std::uint8_t>(coder.order);
  return pack(exec, *model.plan, levels, ranges, coder.order, out, bytes);
}

/// Ranges as they are, run by run and token by token, then the levels under their alphabets.
inline status encode_levels(const host& exec, const rans&, const span_model& model, const component_matrix<const std::int16_t>& levels,
                            std::span<const run_range> ranges, std::span<std::byte> out, chunk_header& header, std::int64_t& bytes) {
  header.kind = chunk_kind::groups_rans;
  if (out.size() < ranges.size_bytes()) return {status::code::no_space, "ranges"};
  if (!ranges.empty()) std::memcpy(out.data(), ranges.data(), ranges.size_bytes());
  const status s = rans_encode(exec, model.levels, levels, out.subspan(ranges.size_bytes()), bytes);
  bytes += static_cast<std::int64_t>(ranges.size_bytes());
  return s;
}

constexpr chunk_kind kind_of(const fixed_width&) { return chunk_kind::groups_fixed; }
constexpr chunk_kind kind_of(const rans&) { return chunk_kind::groups_rans; }

inline status decode_levels(const host&, const fixed_width&, const span_model&, const chunk_header&, std::span<const std::byte>,
                            const component_matrix<std::int16_t>&, std::span<run_range>) {
  return {status::code::corrupt, "chunk: kind"};  // the fixed width is every chain's, see decode_coefficients
}

inline status decode_levels(const host& exec, const rans&, const span_model& model, const chunk_header& header,
                            std::span<const std::byte> in, const component_matrix<std::int16_t>& levels, std::span<run_range> ranges) {
  if (header.order != 0) return {status::code::corrupt, "chunk: order"};
  if (in.size() < ranges.size_bytes()) return {status::code::truncated, "ranges"};
  if (!ranges.empty()) std::memcpy(ranges.data(), in.data(), ranges.size_bytes());
  for (const run_range& r : ranges) {
    if (!is_finite(r)) return {status::code::corrupt, "ranges"};
  }
  return rans_decode(exec, model.levels, in.subspan(ranges.size_bytes()), levels);
}

/// Components that a codec keeps under a step.
template <class T, class E>
std::int64_t kept_components(const chain<T, dead_zone, E>&, const span_model& model, int log2_step) {
  return coded_components(model.scales, model.basis.rank, log2_step);
}
template <class T, class E>
std::int64_t kept_components(const chain<T, bit_groups, E>&, const span_model& model, int) {
  return model.plan->components();
}

inline void require_model(const dead_zone& q, const span_model& m, call_site where) {
  require(m.scales != nullptr || m.basis.rank == 0, "codec: a dead zone needs the scales of components", where);
  require(m.tables != nullptr && m.tables->rounding() == q.rounding, "codec: a dead zone needs the alphabets of its rounding", where);
}
inline void require_model(const bit_groups&, const span_model& m, call_site where) {
  require(m.plan != nullptr && m.plan->components() <= m.basis.rank, "codec: bit_groups need a plan within the rank", where);
}

/// Alphabets of the first components under a step.
inline std::vector<std::uint16_t> tables_of(const span_model& model, std::int64_t components, int log2_step) {
  std::vector<std::uint16_t> tables(static_cast<std::size_t>(components));
  for (std::int64_t c = 0; c < components; ++c) tables[static_cast<std::size_t>(c)] = table_of_scale(model.scales[c], log2_step);
  return tables;
}

/// Coefficients to the bytes of a chunk.
///
/// shapes      coefficients (kept_components, tokens)
/// exactness   the same bytes from the same coefficients everywhere
/// errors      no_space: out is too short, as it is where coding gains nothing over out.size(); unfit: NaN, infinity, beyond the range of
///             symbols. Either way the caller stores rows
template <class T, class E>
status encode_coefficients(const host& exec, const chain<T, dead_zone, E>& codec, const span_model& model,
                           const component_matrix<const float>& coefficients, int log2_step, std::span<std::byte> out, std::int64_t& bytes,
                           call_site where = call_site::here()) {
  require_model(codec.quantizer, model, where);
  require_range("codec: log2_step", log2_step, -32768, 32767, where);
  const std::int64_t components = coefficients.components;
  require(components == coded_components(model.scales, model.basis.rank, log2_step), "codec: coefficients are those that the step keeps",
          where);
  bytes = 0;
  if (out.size() < sizeof(chunk_header)) return {status::code::no_space, "chunk"};
  const float inverse = power_of_code(-log2_step);
  const std::int64_t pitch = symbol_pitch(coefficients.tokens);
  std::vector<std::int16_t> symbols(static_cast<std::size_t>(components * pitch));
  bool fits = true;
  for (std::int64_t c = 0; c < components; ++c) {
    const float* const x = coefficients.component(c);
    std::int16_t* const v = symbols.data() + c * pitch;
    for (std::int32_t t = 0; t < coefficients.tokens; ++t) {
      const std::int32_t n = quantised(x[t], inverse, codec.quantizer.rounding);
      fits = fits && n != beyond_symbols;
      v[t] = static_cast<std::int16_t>(n == beyond_symbols ? 0 : n);
    }
  }
  if (!fits) return {status::code::unfit, "coefficients beyond 32,767 steps"};
  const std::vector<std::uint16_t> tables = tables_of(model, components, log2_step);
  const chunk_header header{chunk_kind::step_rans, 0, static_cast<std::int16_t>(log2_step), static_cast<std::uint32_t>(components)};
  std::memcpy(out.data(), &header, sizeof header);
  const status s = rans_encode(exec, {model.tables->lookups(), tables.data(), components},
                               {symbols.data(), components, coefficients.tokens, pitch}, out.subspan(sizeof header), bytes);
  bytes += static_cast<std::int64_t>(sizeof header);
  return s;
}

template <class T, class E>
status encode_coefficients(const host& exec, const chain<T, bit_groups, E>& codec, const span_model& model,
                           const component_matrix<const float>& coefficients, int, std::span<std::byte> out, std::int64_t& bytes,
                           call_site where = call_site::here()) {
  require_model(codec.quantizer, model, where);
  const bit_plan& plan = *model.plan;
  const std::int64_t components = plan.components(), pitch = symbol_pitch(coefficients.tokens);
  bytes = 0;
  if (out.size() < sizeof(chunk_header)) return {status::code::no_space, "chunk"};
  std::vector<std::int16_t> levels(static_cast<std::size_t>(components * pitch));
  std::vector<run_range> ranges(static_cast<std::size_t>(plan.stored_runs() * coefficients.tokens));
  const status quantised_well = quantise(exec, plan, coefficients, {levels.data(), components, coefficients.tokens, pitch}, ranges, where);
  if (!quantised_well.ok()) return quantised_well;
  chunk_header header{chunk_kind::groups_fixed, 0, 0, static_cast<std::uint32_t>(components)};
  const component_matrix<const std::int16_t> view{levels.data(), components, coefficients.tokens, pitch};
  // No more room than the fixed width: what does not gain is stored at that.
  const auto fixed = static_cast<std::size_t>(packed_bytes(plan, coefficients.tokens));
  const std::span<std::byte> room = out.subspan(sizeof header, std::min(out.size() - sizeof header, fixed));
  status s = encode_levels(exec, codec.entropy, model, view, ranges, room, header, bytes);
  if (s == status::code::no_space || s == status::code::unfit) {
    header = {chunk_kind::groups_fixed, 0, 0, static_cast<std::uint32_t>(components)};
    s = encode_levels(exec, fixed_width{}, model, view, ranges, out.subspan(sizeof header), header, bytes);
  }
  std::memcpy(out.data(), &header, sizeof header);
  bytes += static_cast<std::int64_t>(sizeof header);
  return s;
}

/// The header of a chunk of rows or coefficients; the stream behind it is not looked at.
inline status read_header(std::span<const std::byte> chunk, chunk_header& header) {
  if (chunk.size() < sizeof header) return {status::code::truncated, "chunk"};
  std::memcpy(&header, chunk.data(), sizeof header);
  if (header.kind > chunk_kind::groups_rans || header.order > 1) return {status::code::corrupt, "chunk: kind or order"};
  if (header.kind != chunk_kind::step_rans && header.log2_step != 0) return {status::code::corrupt, "chunk: step"};
  if (header.kind == chunk_kind::rows && (header.order != 0 || header.components != 0)) return {status::code::corrupt, "chunk: rows"};
  return {};
}

/// The coefficients of a chunk that holds no rows.
///
/// shapes      coefficients (header.components, tokens)
/// exactness   the same coefficients from the same bytes everywhere
/// errors      truncated, corrupt: what this codec and model do not write, and coefficients hold garbage
template <class T, class E>
status decode_coefficients(const host& exec, const chain<T, dead_zone, E>& codec, const span_model& model, std::span<const std::byte> chunk,
                           const component_matrix<float>& coefficients, call_site where = call_site::here()) {
  require_model(codec.quantizer, model, where);
  chunk_header header;
  const status read = read_header(chunk, header);
  if (!read.ok()) return read;
  if (header.kind != chunk_kind::step_rans || header.order != 0) return {status::code::corrupt, "chunk: kind"};
  const std::int64_t components = header.components;
  if (components != coded_components(model.scales, model.basis.rank, header.log2_step)) return {status::code::corrupt, "chunk: components"};
  require(coefficients.components == components, "codec: room for the components of the chunk", where);
  const std::int64_t pitch = symbol_pitch(coefficients.tokens);
  std::vector<std::int16_t> symbols(static_cast<std::size_t>(components * pitch));
  const std::vector<std::uint16_t> tables = tables_of(model, components, header.log2_step);
  const status s = rans_decode(exec, {model.tables->lookups(), tables.data(), components}, chunk.subspan(sizeof header),
                               {symbols.data(), components, coefficients.tokens, pitch});
  if (!s.ok()) return s;
  const float unit = power_of_code(header.log2_step) * (1.0f / scale_tables::level_units);
  for (std::int64_t c = 0; c < components; ++c) {
    const std::uint16_t* const levels = model.tables->level(tables[static_cast<std::size_t>(c)]);
    const std::int16_t* const v = symbols.data() + c * pitch;
    float* const x = coefficients.component(c);
    for (std::int32_t t = 0; t < coefficients.tokens; ++t) x[t] = dequantised(v[t], levels, codec.quantizer.rounding, unit);
  }
  return {};
}

template <class T, class E>
status decode_coefficients(const host& exec, const chain<T, bit_groups, E>& codec, const span_model& model,
                           std::span<const std::byte> chunk, const component_matrix<float>& coefficients,
                           call_site where = call_site::here()) {
  require_model(codec.quantizer, model, where);
  chunk_header header;
  const status read = read_header(chunk, header);
  if (!read.ok()) return read;
  const bit_plan& plan = *model.plan;
  const std::int64_t components = plan.components(), pitch = symbol_pitch(coefficients.tokens);
  if (header.components != components) return {status::code::corrupt, "chunk: components"};
  if (header.kind != chunk_kind::groups_fixed && header.kind != kind_of(codec.entropy)) return {status::code::corrupt, "chunk: kind"};
  std::vector<std::int16_t> levels(static_cast<std::size_t>(components * pitch));
  std::vector<run_range> ranges(static_cast<std::size_t>(plan.stored_runs() * coefficients.tokens));
  const component_matrix<std::int16_t> view{levels.data(), components, coefficients.tokens, pitch};
  const std::span<const std::byte> stream = chunk.subspan(sizeof header);
  const status s = header.kind == chunk_kind::groups_fixed ? unpack(exec, plan, stream, static_cast<packing>(header.order), view, ranges)
                                                           : decode_levels(exec, codec.entropy, model, header, stream, view, ranges);
  if (!s.ok()) return s;
  dequantise(exec, plan, view, ranges, coefficients, where);
  return {};
}

/// Turns the heads [first, first + rows.extents[1] / head_dim) of rows forwards or back.
inline void turn_rows(const host& exec, const span_turns& turns, const tensor_view<float, 2>& rows, std::int64_t first_head,
                      bool forwards) {
  if (turns.turns == nullptr) return;
  for_each_task(exec, rows.extents[0], [&](std::int64_t t) {
    for (std::int64_t h = 0; h < rows.extents[1] / turns.head_dim; ++h) {
      const rope_turns* const of = turns.turns[first_head + h];
      if (of != nullptr) turn_key(rows.at(t, h * turns.head_dim), of->pairs(), of->of(t), of->magnitude(), forwards);
    }
  });
}

inline void require_turns(const span_turns& turns, std::int64_t features, std::int64_t tokens, call_site where) {
  if (turns.turns == nullptr) return;
  require(turns.head_dim > 0 && features % turns.head_dim == 0, "codec: features are whole heads", where);
  for (std::int64_t h = 0; h < features / turns.head_dim; ++h) {
    const rope_turns* const of = turns.turns[h];
    require(of == nullptr || of->pairs().dims <= turns.head_dim, "codec: a turn within a head", where);
    require(of == nullptr || of->pairs().channels == rope_pairs::order::none || of->tokens() >= tokens, "codec: turns of all tokens",
            where);
  }
}

/// Rows as floats, their keys turned back.
///
/// shapes      rows, floats (tokens, features), features dense
/// errors      usage_error: turns that do not fit
template <element E>
void unturn_rows(const host& exec, const tensor_view<const E, 2>& rows, const span_turns& turns, const tensor_view<float, 2>& floats,
                 call_site where) {
  const std::int64_t tokens = rows.extents[0], features = rows.extents[1];
  require_turns(turns, features, tokens, where);
  for_each_task(exec, tokens, [&](std::int64_t t) { simd::convert_row(floats.at(t, 0), rows.at(t, 0), features); });
  turn_rows(exec, turns, floats, 0, false);
}

/// The first coefficients of rows, whose keys are turned back before.
///
/// shapes      rows (tokens, features of the basis), features dense; coefficients (components, tokens) dense
/// errors      false where rows hold NaN or infinity. usage_error: turns that do not fit
template <element E>
bool project_rows(const host& exec, const matrix_product& product, const span_model& model, const tensor_view<const E, 2>& rows,
                  const span_turns& turns, std::int64_t components, float* coefficients, call_site where) {
  const std::int64_t tokens = rows.extents[0], features = rows.extents[1];
  const memory_block memory = allocate(exec, tokens * features * static_cast<std::int64_t>(sizeof(float)));
  const tensor_view<float, 2> floats(reinterpret_cast<float*>(memory.data()), tokens, features);
  unturn_rows(exec, rows, turns, floats, where);
  add_prediction(exec, product, model.prediction, features, 0, -1, floats);
  return pca_project(exec, product, model.basis, read_only(floats), components, coefficients, tokens, where);
}

/// Rows to the bytes of a chunk.
///
/// shapes      rows (tokens, features), features dense; out at least chunk_bound<E>
/// exactness   the matrix product decides; from the coefficients on, see encode_coefficients
/// cost        the products, 2 tokens features components operations, are nearly all of it
/// errors      no_space alone; NaN, infinity and what coding would not shorten are stored as rows. usage_error: shapes
template <class Codec, element E>
status encode_chunk(const host& exec, const matrix_product& product, const Codec& codec, const span_model& model,
                    const tensor_view<const E, 2>& rows, const span_turns& turns, int log2_step, std::span<std::byte> out,
                    std::int64_t& bytes, call_site where = call_site::here()) {
  const std::int64_t tokens = rows.extents[0], features = rows.extents[1];
  require(rows.strides[1] == 1 || features <= 1, "encode_chunk: features of a row are dense", where);
  require_range("encode_chunk: tokens", tokens, 0, 1 << 20, where);
  bytes = 0;
  const std::int64_t bound = chunk_bound<E>(tokens, features);
  if constexpr (!std::same_as<Codec, raw>) {
    require(features == model.basis.features, "encode_chunk: rows hold the features of the basis", where);
    require_model(codec.quantizer, model, where);
    const std::int64_t components = kept_components(codec, model, log2_step);
    const memory_block projected = allocate(exec, components * tokens * static_cast<std::int64_t>(sizeof(float)));
    auto* const coefficients = reinterpret_cast<float*>(projected.data());
    if (project_rows(exec, product, model, rows, turns, components, coefficients, where)) {
      const std::size_t room = std::min(out.size(), static_cast<std::size_t>(std::max<std::int64_t>(bound - 1, 0)));
      const status s = encode_coefficients(exec, codec, model, {coefficients, components, static_cast<std::int32_t>(tokens), tokens},
                                           log2_step, out.first(room), bytes, where);
      if (s.ok()) return s;
    }
  }
  bytes = 0;
  if (static_cast<std::int64_t>(out.size()) < bound) return {status::code::no_space, "chunk"};
  const chunk_header header;
  std::memcpy(out.data(), &header, sizeof header);
  const auto row_bytes = static_cast<std::size_t>(features) * sizeof(E);
  for (std::int64_t t = 0; t < tokens && row_bytes > 0; ++t)
    std::memcpy(out.data() + sizeof header + static_cast<std::size_t>(t) * row_bytes, rows.at(t, 0), row_bytes);
  bytes = bound;
  return {};
}

/// A chunk whose entropy coding is undone: its layers can be restored one by one. Refers to the bytes that it was opened on.
template <element E>
struct opened_chunk {
  chunk_header header;
  std::int64_t tokens = 0;
  std::span<const std::byte> rows;  ///< of a chunk of rows
  memory_block coefficients;        ///< (components, tokens) floats of others
};

/// Undoes the entropy coding of a chunk.
///
/// errors      truncated, corrupt; then the chunk is as it was
template <class Codec, element E>
status open_chunk(const host& exec, const Codec& codec, const span_model& model, std::span<const std::byte> bytes, std::int64_t tokens,
                  std::int64_t features, opened_chunk<E>& chunk, call_site where = call_site::here()) {
  require_range("open_chunk: tokens", tokens, 0, 1 << 20, where);
  opened_chunk<E> opened;
  opened.tokens = tokens;
  const status read = read_header(bytes, opened.header);
  if (!read.ok()) return read;
  if (opened.header.kind == chunk_kind::rows) {
    opened.rows = bytes.subspan(sizeof(chunk_header));
    const std::int64_t expected = chunk_bound<E>(tokens, features) - static_cast<std::int64_t>(sizeof(chunk_header));
    if (static_cast<std::int64_t>(opened.rows.size()) < expected) return {status::code::truncated, "chunk of rows"};
    if (static_cast<std::int64_t>(opened.rows.size()) > expected) return {status::code::corrupt, "chunk of rows: bytes after its end"};
  } else if constexpr (std::same_as<Codec, raw>) {
    return {status::code::corrupt, "chunk: kind"};
  } else {
    require(features == model.basis.features, "open_chunk: the features of the basis", where);
    if (opened.header.components > model.basis.rank) return {status::code::corrupt, "chunk: components"};
    opened.coefficients = allocate(exec, std::int64_t{opened.header.components} * tokens * static_cast<std::int64_t>(sizeof(float)));
    const status s = decode_coefficients(
        exec, codec, model, bytes,
        {reinterpret_cast<float*>(opened.coefficients.data()), opened.header.components, static_cast<std::int32_t>(tokens), tokens}, where);
    if (!s.ok()) return s;
  }
  chunk = std::move(opened);
  return {};
}

/// The features [first, first + rows.extents[1]) of an opened chunk, whole heads where keys turn.
///
/// shapes      rows (tokens, features), features dense
/// exactness   chunks of rows to the bit; others within the product's rounding, then rounded to E
template <element E>
void restore_rows(const host& exec, const matrix_product& product, const span_model& model, const opened_chunk<E>& chunk,
                  const span_turns& turns, std::int64_t first, const tensor_view<E, 2>& rows, call_site where = call_site::here()) {
  const std::int64_t tokens = chunk.tokens, count = rows.extents[1];
  require(rows.extents[0] == tokens && (rows.strides[1] == 1 || count <= 1), "restore_rows: rows of the chunk's tokens, features dense",
          where);
  if (chunk.header.kind == chunk_kind::rows) {
    const std::int64_t features = tokens > 0 ? static_cast<std::int64_t>(chunk.rows.size() / sizeof(E)) / tokens : first + count;
    require(first >= 0 && first + count <= features, "restore_rows: features of the chunk", where);
    for (std::int64_t t = 0; t < tokens && count > 0; ++t)
      std::memcpy(rows.at(t, 0), chunk.rows.data() + static_cast<std::size_t>(t * features + first) * sizeof(E),
                  static_cast<std::size_t>(count) * sizeof(E));
    return;
  }
  require_turns(turns, model.basis.features, tokens, where);
  require(turns.turns == nullptr || (first % turns.head_dim == 0 && count % turns.head_dim == 0), "restore_rows: whole heads", where);
  const memory_block memory = allocate(exec, tokens * count * static_cast<std::int64_t>(sizeof(float)));
  const tensor_view<float, 2> floats(reinterpret_cast<float*>(memory.data()), tokens, count);
  pca_restore(exec, product, model.basis, reinterpret_cast<const float*>(chunk.coefficients.data()), tokens, chunk.header.components, first,
              floats, where);
  add_prediction(exec, product, model.prediction, model.basis.features, first, 1, floats);
  turn_rows(exec, turns, floats, turns.turns != nullptr ? first / turns.head_dim : 0, true);
  for_each_task(exec, tokens, [&](std::int64_t t) { simd::convert_row(rows.at(t, 0), floats.at(t, 0), count); });
}

}  // namespace kvx
