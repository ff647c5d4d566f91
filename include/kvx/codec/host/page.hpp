#pragma once
// Chunks of a fixed size, for engines whose cold pages have one: the finest step whose chunk fits.

#include <kvx/codec/host/chain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvx {

/// Bytes before the chunk of a page: its length.
inline constexpr std::int64_t page_front_bytes = 4;

/// Coefficients to a chunk of at most out.size() bytes.
///
/// what        the smallest step from log2_step on, by thirty-seconds of an octave, whose chunk fits; the largest leaves every component
///             out, which takes 16 bytes
/// shapes      coefficients (kept_components of log2_step, tokens)
/// exactness   a pure function of the coefficients and the room
/// cost        some ten entropy codings
/// errors      no_space: no step fits; unfit: numbers that no step codes
template <class T, class E>
status encode_within(const host& exec, const chain<T, dead_zone, E>& codec, const span_model& model,
                     const component_matrix<const float>& coefficients, int log2_step, std::span<std::byte> out, std::int64_t& bytes,
                     call_site where = call_site::here()) {
  constexpr int stride = 8;
  const auto attempt = [&](int steps) {
    component_matrix<const float> kept = coefficients;
    const int step = std::min(log2_step + steps * stride, 32767);
    kept.components = kept_components(codec, model, step);
    return encode_coefficients(exec, codec, model, kept, step, out, bytes, where);
  };
  int largest_scale = log2_step;
  for (std::int64_t c = 0; c < coefficients.components; ++c) largest_scale = std::max<int>(largest_scale, model.scales[c].log2_scale);
  // A chunk is the shorter the larger its step, but for a few bytes; where those matter, the bisection finds one of the steps that fit.
  int low = -1, high = (largest_scale - rank_cut + stride - log2_step) / stride;
  const status largest = attempt(high);
  if (!largest.ok()) return largest;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    const status s = attempt(middle);
    (s.ok() ? high : low) = middle;
  }
  return attempt(high);
}

/// Rows to a page of exactly out.size() bytes: the length of the chunk, the chunk, zeros.
///
/// shapes      rows (tokens, features)
/// errors      no_space: not even the largest step fits; unfit: NaN or infinity, which a page of this size has no room for. Either way the
///             caller keeps the rows. usage_error: shapes
template <class T, class E, element R>
status encode_page(const host& exec, const matrix_product& product, const chain<T, dead_zone, E>& codec, const span_model& model,
                   const tensor_view<const R, 2>& rows, const span_turns& turns, int log2_step, std::span<std::byte> out,
                   call_site where = call_site::here()) {
  const std::int64_t tokens = rows.extents[0], features = rows.extents[1];
  require(features == model.basis.features && (rows.strides[1] == 1 || features <= 1),
          "encode_page: rows hold the features of the basis, dense", where);
  require_range("encode_page: tokens", tokens, 0, 1 << 20, where);
  require_model(codec.quantizer, model, where);
  if (out.size() < static_cast<std::size_t>(page_front_bytes)) return {status::code::no_space, "page"};
  const std::int64_t components = kept_components(codec, model, log2_step);
  const memory_block memory = allocate(exec, components * tokens * static_cast<std::int64_t>(sizeof(float)));
  auto* const coefficients = reinterpret_cast<float*>(memory.data());
  if (!project_rows(exec, product, model, rows, turns, components, coefficients, where))
    return {status::code::unfit, "rows that are no numbers"};
  std::int64_t bytes = 0;
  const status s = encode_within(exec, codec, model, {coefficients, components, static_cast<std::int32_t>(tokens), tokens}, log2_step,
                                 out.subspan(page_front_bytes), bytes, where);
  if (!s.ok()) return s;
  const auto length = static_cast<std::uint32_t>(bytes);
  std::memcpy(out.data(), &length, sizeof length);
  std::fill(out.begin() + page_front_bytes + bytes, out.end(), std::byte{0});
  return {};
}

/// The chunk of a page.
///
/// errors      truncated, corrupt: a length beyond the page, or bytes behind the chunk
inline status chunk_of_page(std::span<const std::byte> page, std::span<const std::byte>& chunk) {
  if (page.size() < static_cast<std::size_t>(page_front_bytes)) return {status::code::truncated, "page"};
  std::uint32_t length = 0;
  std::memcpy(&length, page.data(), sizeof length);
  const std::span<const std::byte> rest = page.subspan(page_front_bytes);
  if (length > rest.size()) return {status::code::corrupt, "page: its length"};
  if (std::any_of(rest.begin() + length, rest.end(), [](std::byte b) { return b != std::byte{0}; }))
    return {status::code::corrupt, "page: bytes behind its chunk"};
  chunk = rest.first(length);
  return {};
}

}  // namespace kvx
