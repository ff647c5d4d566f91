#pragma once
// The code of a key as numbers: cells, signs, weights and what they stand for; the scalar rules that every encoder and reader follows.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/rounded.hpp>
#include <kvx/sketch/key_norm.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cstdint>
#include <type_traits>

namespace kvx {

// Encoding: k' = a (k - c), k~ = rotate(k'), then per subspace b of k~, with coordinates x_j, all sums in ascending order:
//   r^2   = sum_j x_j^2                    each square rounded to float
//   cell  = number of thresholds t_i with x_j^2 >= t_i^2 r^2, both sides rounded to float
//   w_b   = r^2 / sum_j level(cell_j) |x_j|, so that <k', q'> ~ sum_b w_b <v_b, q~_b> without bias, v_bj = +-level(cell_j)
// One weight per key: the same with the whole key as the only subspace (of more than 16 coordinates: in units of the root mean square).
// A key that is never found (see norm_byte) has signs and cells 0, norm byte 0, and weights NaN: its estimate is NaN and ranks last.

/// Columns of one page of one KV head, as numbers; a pointer is null where the sketch has no such column. See sketch_column for shapes.
template <bool Writes>
struct page_code {
  template <class T>
  using pointer = std::conditional_t<Writes, T*, const T*>;

  pointer<std::uint8_t> signs = nullptr;
  pointer<std::uint8_t> norms = nullptr;
  pointer<bf16> means = nullptr;
  pointer<std::uint8_t> magnitudes = nullptr;
  pointer<half> weights = nullptr;
};

/// The code of page `page` of KV head `head`, to be read or written.
template <bool Writes = false>
inline page_code<Writes> code_of(const key_columns& columns, std::int64_t page, std::int64_t head) {
  const auto at = [&](sketch_column c) { return columns[c].data == nullptr ? nullptr : columns[c].at(page, head); };
  page_code<Writes> code;
  code.signs = reinterpret_cast<std::uint8_t*>(at(column_signs));
  code.norms = reinterpret_cast<std::uint8_t*>(at(column_norms));
  code.means = reinterpret_cast<bf16*>(at(column_means));
  code.magnitudes = reinterpret_cast<std::uint8_t*>(at(column_magnitudes));
  code.weights = reinterpret_cast<half*>(at(column_weights));
  return code;
}

/// Bit d of a plane.
KVX_HD constexpr int plane_bit(const std::uint8_t* plane, int d) { return plane[d / 8] >> (d % 8) & 1; }

/// Whether coordinate d of the key in `slot` is >= 0.   signs (plane_bytes(D), P)
KVX_HD constexpr bool is_nonnegative(const std::uint8_t* signs, int page_tokens, int slot, int d) {
  return (signs[static_cast<std::int64_t>(d / 8) * page_tokens + slot] >> (d % 8) & 1) != 0;
}

/// Cell of coordinate d; `planes` are those of one key: (bits - 1, plane_bytes(D)).
KVX_HD constexpr int cell_of(const std::uint8_t* planes, const key_sketch& s, int dim, int d) {
  int cell = 0;
  for (int p = 0; p < s.bits - 1; ++p) cell |= plane_bit(planes + p * plane_bytes(dim), d) << p;
  return cell;
}

/// Coordinates that share the codebook (and the weight) of coordinate d: the width of its subspace, or of the whole key.
KVX_HD constexpr int codebook_width(const key_sketch& s, int dim, int d) {
  if (s.weights == key_sketch::weighting::key) return dim;
  const int first = d / s.subspace * s.subspace;
  return dim - first < s.subspace ? dim - first : s.subspace;
}

/// Which of a key's weights belongs to coordinate d.
KVX_HD constexpr int weight_of(const key_sketch& s, int d) { return s.weights == key_sketch::weighting::key ? 0 : d / s.subspace; }

/// Cell of a coordinate with this square in a subspace with this squared radius: how many thresholds it reaches.
KVX_HD constexpr int find_cell(float square, float square_radius, const float* squared_thresholds, int magnitude_bits) {
  int cell = 0;
  for (int step = (1 << magnitude_bits) / 2; step > 0; step /= 2) {
    if (square >= rounded_product(squared_thresholds[cell + step - 1], square_radius)) cell += step;
  }
  return cell;
}

/// The weight r^2 / sum, in 16 bits: at most 65,504, and 0 for a subspace that is zero.
KVX_HD constexpr half weight(float square_radius, float level_sum) {
  if (square_radius == 0) return {};
  const float w = square_radius / level_sum;
  return round_to<half>(w > 65504.0f ? 65504.0f : w);
}

/// The weights of a key that is never found.
inline constexpr half no_weight{0x7e00};

/// Gives a key the code of one that is never found.
KVX_HD constexpr void forget_key(const key_sketch& s, int dim, int page_tokens, int slot, const page_code<true>& out) {
  const int bytes = plane_bytes(dim), magnitudes = (s.bits - 1) * bytes, weights = weights_per_key(s, dim);
  for (int y = 0; y < bytes; ++y) out.signs[std::int64_t{y} * page_tokens + slot] = 0;
  if (out.norms != nullptr) out.norms[slot] = never_found;
  for (int i = 0; out.magnitudes != nullptr && i < magnitudes; ++i) out.magnitudes[std::int64_t{slot} * magnitudes + i] = 0;
  for (int i = 0; out.weights != nullptr && i < weights; ++i) out.weights[std::int64_t{slot} * weights + i] = half{0x7e00};  // no_weight
}

static_assert(weight(4, 2).bits == 0x4000 && weight(0, 0).bits == 0 && weight(1e9f, 1).bits == 0x7bff);
static_assert([] {
  constexpr float thresholds[3] = {1, 2, 3};
  return find_cell(0.5f, 1, thresholds, 2) == 0 && find_cell(2, 1, thresholds, 2) == 2 && find_cell(7, 2, thresholds, 2) == 3;
}());

}  // namespace kvx
