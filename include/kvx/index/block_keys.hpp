#pragma once
// The keys of one block of tokens as its packing reads them: those that can be found, as floats.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/fixed_dot.hpp>

#include <cstdint>

namespace kvx {

/// Rows of floats of one block.
///
/// shapes      rows (n, pitch), zero behind D; offsets (n), ascending: the token of each, counted from the start of the block
struct block_keys {
  const float* rows = nullptr;
  const std::int32_t* offsets = nullptr;
  int n = 0;
  int dim = 0;
  std::int64_t pitch = 0;

  KVX_HD constexpr const float* row(int i) const { return rows + i * pitch; }
};

/// The same rows in the query metric M: z = M x, with M scaled by a power of two; x itself without a metric.
///
/// trace       of the scaled M; D without one
struct asked_keys {
  block_keys rows;
  double trace = 0;
};

/// A component of z = M x where M is a diagonal: the product is exact in double, and so is that with a power of two.
KVX_HD constexpr float asked_component(float metric, float x, double factor) {
  return static_cast<float>(static_cast<double>(metric) * static_cast<double>(x) * factor);
}
static_assert(asked_component(3, 5, .5) == 7.5f);

/// Floats from one row to the next.
KVX_HD constexpr std::int64_t block_key_pitch(int dim) { return round_up(dim, 2 * fixed_dot_lanes); }

}  // namespace kvx
