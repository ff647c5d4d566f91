#pragma once
// The code of a key: what is kept of it beside its row, and where each part lies.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>

#include <array>
#include <cstdint>

namespace kvx {

/// How keys are encoded. Index and reranker of a cache read the same code.
///
/// subspace    m: coordinates that share a codebook (and a weight): 4, 8 or 16
/// bits        per coordinate, the sign included: 1 (signs alone), 2, 4, 8
/// weights     one for each subspace, or one for the whole key
/// centre      keys are taken relative to the mean of their own page
/// balance     keys are scaled, queries divided, by one diagonal per head, learned from the tokens before this one: nothing is coded
///             until all of them have left the recent zone. 0: no balance
/// norms       one byte a key for the coarse score
/// seed        of the random signs of the rotation; one for the cache
/// source      ParisKV (arXiv 2602.07721) section 3; page centre, balance and the norm byte are ours: `faithful` has none of them
struct key_sketch {
  enum class weighting : std::uint8_t { subspace, key };

  int subspace = 8;
  int bits = 4;
  weighting weights = weighting::subspace;
  bool centre = true;
  int balance = 1024;
  bool norms = true;
  std::uint64_t seed = 0x6b76785f73726874;

  friend constexpr bool operator==(const key_sketch&, const key_sketch&) = default;
};

KVX_HD constexpr bool is_valid(const key_sketch& s) {
  return (s.subspace == 4 || s.subspace == 8 || s.subspace == 16) && (s.bits == 1 || s.bits == 2 || s.bits == 4 || s.bits == 8) &&
         s.balance >= 0 && s.balance <= 1 << 20;
}

/// Bytes of one plane of bits of a key: coordinate j is bit j % 8 of byte j / 8.
KVX_HD constexpr int plane_bytes(int dim) { return (dim + 7) / 8; }

/// Subspaces of a key, the last one may be narrower.
KVX_HD constexpr int subspaces(const key_sketch& s, int dim) { return (dim + s.subspace - 1) / s.subspace; }

/// Weights of a key.
KVX_HD constexpr int weights_per_key(const key_sketch& s, int dim) {
  return s.bits == 1 ? 0 : s.weights == key_sketch::weighting::key ? 1 : subspaces(s, dim);
}

/// Columns of a sketch, in this order; those that it has not have blocks of 0 bytes.
///
/// signs       [plane_bytes(D)][P] bytes: plane byte j of all keys side by side, what byte shuffles score; bit 1: coordinate >= 0
/// norms       [P] bytes, see key_norm.hpp
/// means       [D] bf16: the mean key of the page, before balance and rotation
/// magnitudes  [P][bits - 1][plane_bytes(D)] bytes: bit p of the magnitude index of each coordinate, plane after plane, key by key
/// weights     [P][weights_per_key] half
enum sketch_column : std::uint8_t { column_signs, column_norms, column_means, column_magnitudes, column_weights, sketch_column_count };

KVX_HD constexpr std::int64_t block_bytes(const key_sketch& s, page_shape page, sketch_column c) {
  const std::int64_t plane = plane_bytes(page.key_dim);
  switch (c) {
    case column_signs: return plane * page.tokens;
    case column_norms: return s.norms ? page.tokens : 0;
    case column_means: return s.centre ? page.key_dim * 2 : 0;
    case column_magnitudes: return plane * (s.bits - 1) * page.tokens;
    case column_weights: return std::int64_t{2} * weights_per_key(s, page.key_dim) * page.tokens;
    default: return 0;
  }
}

constexpr std::array<column, sketch_column_count> sketch_columns(const key_sketch& s, page_shape page) {
  std::array<column, sketch_column_count> result;
  for (int c = 0; c < sketch_column_count; ++c)
    result[static_cast<std::size_t>(c)].block_bytes = block_bytes(s, page, static_cast<sketch_column>(c));
  return result;
}

/// The columns of one layer; those that are absent have null data.
using key_columns = std::array<column_array, sketch_column_count>;

static_assert([] {
  std::int64_t scanned = 0, all = 0;
  for (int c = 0; c < sketch_column_count; ++c) {
    const std::int64_t bytes = block_bytes({}, {64, 128, 128}, static_cast<sketch_column>(c));
    all += bytes;
    if (c <= column_means) scanned += bytes;
  }
  return scanned == 21 * 64 && all == 101 * 64;  // bytes a key at D 128: 21 to scan, 101 in all
}());

}  // namespace kvx
