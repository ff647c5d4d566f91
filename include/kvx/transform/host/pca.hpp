#pragma once
// Projection to a calibrated basis and back on the host, by the matrix product that the caller hands in.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/convert.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/transform/matrix_product.hpp>
#include <kvx/transform/pca.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

namespace kvx {

/// Features, and components, that one product takes: half a basis tile as floats fits the cache of a core.
inline constexpr std::int64_t pca_feature_tile = 384, pca_component_tile = 128;

inline void require_basis(const pca_basis& b, call_site where) {
  require(b.features >= 1 && b.rank >= 0, "pca: a basis has features", where);
  require(b.mean != nullptr && (b.rank == 0 || b.basis != nullptr), "pca: mean or basis is null", where);
}

/// The bits of |x|: in their order integers are larger where floats are, infinity and NaN above all.
constexpr std::uint32_t absolute_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
inline constexpr std::uint32_t bits_of_infinity = 0x7f800000u;

/// Floats of a tile of the basis: components [c, c + count) and features [f, f + width), `width` floats a component.
inline void basis_tile(const pca_basis& b, std::int64_t c, std::int64_t count, std::int64_t f, std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < count; ++i) simd::convert_row(out + i * width, b.basis + (c + i) * b.features + f, width);
}

/// The first components of tokens.
///
/// shapes      rows (T, features), any strides between tokens, features dense; coefficients (components, T) with `pitch` floats between
///             components, components at most the rank
/// exactness   float: sums in the order of the product, tiles of 384 features ascending; the same for any number of threads
/// cost        2 T components features operations; scratch for T features floats and a tile a thread
/// errors      false where a row holds NaN or infinity, or gives a coefficient that does. usage_error: shapes
inline bool pca_project(const host& exec, const matrix_product& product, const pca_basis& basis, const tensor_view<const float, 2>& rows,
                        std::int64_t components, float* coefficients, std::int64_t pitch, call_site where = call_site::here()) {
  require_basis(basis, where);
  const std::int64_t tokens = rows.extents[0], features = basis.features;
  require(rows.extents[1] == features && (rows.strides[1] == 1 || features == 1), "pca_project: rows hold the features of the basis, dense",
          where);
  require_range("pca_project: components", components, 0, basis.rank, where);
  require(pitch >= tokens, "pca_project: pitch is at least the tokens", where);
  if (tokens == 0) return true;
  const std::int64_t tiles = ceil_div(features, pca_feature_tile);
  const memory_block columns = allocate(exec, features * tokens * static_cast<std::int64_t>(sizeof(float)));
  auto* const x = reinterpret_cast<float*>(columns.data());                                         // x (features, T), centred
  std::atomic<bool> finite = true;
  for_each_task(exec, tiles, [&](std::int64_t tile) {
    const std::int64_t first = tile * pca_feature_tile, last = std::min(first + pca_feature_tile, features);
    std::uint32_t largest = 0;
    for (std::int64_t block = first; block < last; block += 16) {  // features of one cache line, whose lines stay near from one to the next
      for (std::int64_t f = block; f < std::min(block + 16, last); ++f) {
        const float mean = basis.mean[f], weight = basis.weights != nullptr ? basis.weights[f] : 1.0f;
        const float* const column = rows.data + f;
        for (std::int64_t t = 0; t < tokens; ++t) {
          const float centred = (column[t * rows.strides[0]] - mean) * weight;
          x[f * tokens + t] = centred;
          largest = std::max(largest, absolute_bits(centred));
        }
      }
    }
    if (largest >= bits_of_infinity) finite.store(false, std::memory_order_relaxed);
  });
  if (!finite) return false;
  const std::int64_t groups = ceil_div(components, pca_component_tile);
  const memory_block tile_floats =
      allocate(exec, groups * pca_component_tile * pca_feature_tile * static_cast<std::int64_t>(sizeof(float)));
  for_each_task(exec, groups, [&](std::int64_t group) {
    const std::int64_t c = group * pca_component_tile, count = std::min(pca_component_tile, components - c);
    float* const tile = reinterpret_cast<float*>(tile_floats.data()) + group * pca_component_tile * pca_feature_tile;
    for (std::int64_t f = 0; f < features; f += pca_feature_tile) {
      const std::int64_t width = std::min(pca_feature_tile, features - f);
      basis_tile(basis, c, count, f, width, tile);
      product.run(product.context, {false, f > 0, count, tokens, width}, tile, width, x + f * tokens, tokens, coefficients + c * pitch,
                  pitch);
    }
    std::uint32_t largest = 0;
    for (std::int64_t i = c; i < c + count; ++i) {
      for (std::int64_t t = 0; t < tokens; ++t) largest = std::max(largest, absolute_bits(coefficients[i * pitch + t]));
    }
    if (largest >= bits_of_infinity) finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

/// The features [first, first + count) of tokens: the layers of a span may be restored one by one.
///
/// shapes      coefficients (components, T) with `pitch` floats between components, components at most the rank; rows (T, count), features
/// dense exactness, cost, errors    as pca_project
inline void pca_restore(const host& exec, const matrix_product& product, const pca_basis& basis, const float* coefficients,
                        std::int64_t pitch, std::int64_t components, std::int64_t first, const tensor_view<float, 2>& rows,
                        call_site where = call_site::here()) {
  require_basis(basis, where);
  const std::int64_t tokens = rows.extents[0], count = rows.extents[1];
  require_range("pca_restore: components", components, 0, basis.rank, where);
  require_range("pca_restore: first feature", first, 0, basis.features, where);
  require_range("pca_restore: features", count, 0, basis.features - first, where);
  require(rows.strides[1] == 1 || count <= 1, "pca_restore: features of a row are dense", where);
  if (tokens == 0 || count == 0) return;
  const std::int64_t tiles = ceil_div(count, pca_feature_tile), workers = std::min<std::int64_t>(tiles, worker_count(exec));
  const std::int64_t tile_floats = components * pca_feature_tile;
  const memory_block scratch = allocate(exec, workers * tile_floats * static_cast<std::int64_t>(sizeof(float)));
  for_each_task(limited(exec, static_cast<int>(workers)), workers, [&](std::int64_t worker) {
    float* const tile = reinterpret_cast<float*>(scratch.data()) + worker * tile_floats;
    for (std::int64_t number = worker; number < tiles; number += workers) {
      const std::int64_t f = number * pca_feature_tile, width = std::min(pca_feature_tile, count - f);
      basis_tile(basis, 0, components, first + f, width, tile);
      product.run(product.context, {true, false, tokens, width, components}, coefficients, pitch, tile, width, rows.at(0, f),
                  rows.strides[0]);
      for (std::int64_t t = 0; t < tokens; ++t) {
        float* const row = rows.at(t, f);
        for (std::int64_t i = 0; i < width; ++i) {
          const std::int64_t at = first + f + i;
          row[i] = (basis.weights != nullptr ? row[i] / basis.weights[at] : row[i]) + basis.mean[at];
        }
      }
    }
  });
}

}  // namespace kvx
