#pragma once
// Encoding pages of values on the host.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/value_code.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// Everything that encoding values needs beside them: the encoder of their sketch (value_sketch).
///
/// bits        0: page means alone
template <element E>
struct value_encoder {
  int bits = 0;
  key_encoder<E> encoder;
};

template <element E, int Bits>
value_encoder<E> make_value_encoder(int value_dim, std::uint64_t seed, const simd::encode_table& kernels = simd::encode_kernels(),
                                    call_site where = call_site::here()) {
  static_assert(Bits == 0 || Bits == 2 || Bits == 4);
  return {Bits, make_key_encoder < E, Bits == 0 ? 1 : Bits > (value_sketch(Bits, seed), value_dim, kernels, where)};
}

/// Fields of one token's code from its planes of bits.
///
/// shapes      planes, 0 beyond dim; signs: plane bytes `pitch` apart; magnitudes (bits - 1, plane_bytes); code (value_row_bytes)
inline void pack_value(const std::uint8_t* signs, std::int64_t pitch, const std::uint8_t* magnitudes, int bits, int dim,
                       std::uint8_t* code) {
  const int plane = plane_bytes(dim), bytes = static_cast<int>(value_row_bytes(bits, dim));
  for (int y = 0, at = 0; y < plane; ++y, at += bits) {
    const std::uint32_t fields = value_fields(signs[y * pitch], magnitudes + y, plane, bits);
    for (int j = 0; j < bits && at + j < bytes; ++j) code[at + j] = static_cast<std::uint8_t>(fields >> 8 * j);
  }
  for (int j = plane * bits; j < bytes; ++j) code[j] = 0;
}

/// Encodes all values of one page of one KV head.
///
/// what        mean, codes and scales; see value_code.hpp for the rules
/// shapes      rows (P, stride), Dv components each; out: see value_column
/// exactness   the same bits from every compiler, flag and instruction set
/// cost        that of encoding keys, and two operations a bit to pack fields
/// errors      none; a value that is not finite has scale NaN
/// source      ours; the code is a key's (ParisKV, arXiv 2602.07721, section 3) with one weight
template <element E>
void encode_values(const value_encoder<E>& values, const E* rows, std::int64_t stride, int page_tokens, const page_values<true>& out) {
  const key_encoder<E>& encoder = values.encoder;
  const int dim = encoder.dim, bits = values.bits, plane = plane_bytes(dim);
  alignas(64) std::array<float, simd::encode_pitch> centre;                                         // centre (Dv), in lane order
  mean_key(*encoder.kernels, rows, stride, page_tokens, dim, centre.data(), out.means);
  if (bits == 0) return;

  constexpr int block = 64, most_plane = simd::longest_key / 8;
  std::array<std::uint8_t, block * most_plane> signs;                                               // (plane_bytes, block)
  std::array<std::uint8_t, block * most_plane * 3> magnitudes;                                      // (block, bits - 1, plane_bytes)
  std::array<float, block> square_norms;
  simd::encode_task task = key_task(encoder, centre.data(), encoder.balanced.data());
  task.page_tokens = block;
  task.signs = signs.data();
  task.magnitudes = magnitudes.data();
  for (int first = 0; first < page_tokens; first += block) {
    const int n = std::min(block, page_tokens - first);
    task.weights = out.scales + first;
    encoder.encode(task, rows + first * stride, stride, 0, n, square_norms.data());
    for (int t = 0; t < n; ++t) {
      std::uint8_t* const code = out.codes + (first + t) * value_row_bytes(bits, dim);
      if (!(square_norms[static_cast<std::size_t>(t)] < largest_square_norm)) {
        std::fill_n(code, value_row_bytes(bits, dim), std::uint8_t{0});
        out.scales[first + t] = no_weight;
        continue;
      }
      pack_value(signs.data() + t, block, magnitudes.data() + t * (bits - 1) * plane, bits, dim, code);
    }
  }
}

}  // namespace kvx
