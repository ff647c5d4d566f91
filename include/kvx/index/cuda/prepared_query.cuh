#pragma once
// The record that a prepared query of one unit is, from the kernel that prepares it to those that scan.

#include <kvx/backend/simd/scan_table.hpp>
#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cstdint>

namespace kvx {

/// Query heads of a KV head at most, on a device: their tables lie in shared memory.
inline constexpr int most_device_group = 64;

/// Where the parts of a record lie, in bytes from its start, multiples of 16.
///
/// heads         that are scored: the group's, or 1 for the mean query
/// words         32-bit words of the heads' entries side by side, four heads each: 1, 2 or 4 (2 at most where D > 256); with more heads, in
///               `passes`
/// numbers       sign_sum_numbers at 0
/// ratios, centres           int16 (padded heads)
/// page_scales, head_offsets double (padded heads)
/// tables        uint32 [passes][rows][2][16][words]: what the low and the high four bits of a plane byte add, a byte for each head;
///               rows: plane bytes, rounded up to 4, those beyond the last 0
/// page_queries  float [passes][round_up(D, 16)][4 words]; no bytes where pages add nothing
struct sign_sum_record {
  int heads = 1;
  int words = 1;
  int passes = 1;
  int rows = 4;
  int page_dim = 0;
  int ratios = 0, centres = 0, page_scales = 0, head_offsets = 0, tables = 0, page_queries = 0, bytes = 0;

  KVX_HD constexpr int padded_heads() const { return 4 * words * passes; }
  /// Bytes of one pass.
  KVX_HD constexpr int table_bytes() const { return rows * 128 * words; }
  KVX_HD constexpr int page_query_bytes() const { return page_dim * 16 * words; }
};

KVX_HD constexpr sign_sum_record sign_sum_record_of(const key_sketch& sketch, const bucket_scoring& by, int dim, int group) {
  sign_sum_record r;
  r.heads = by.of == bucket_scoring::query::mean_query ? 1 : group;
  const bool wide = plane_bytes(dim) > simd::narrow_planes;  // sums take twice the registers
  r.words = r.heads <= 4 ? 1 : r.heads <= 8 || wide ? 2 : 4;
  r.passes = (r.heads + 4 * r.words - 1) / (4 * r.words);
  r.rows = (plane_bytes(dim) + 3) / 4 * 4;
  r.page_dim = sketch.centre && sketch.norms ? (dim + 15) / 16 * 16 : 0;
  const int padded = r.padded_heads();
  r.ratios = 16;
  r.centres = r.ratios + static_cast<int>(round_up(2 * padded, 16));
  r.page_scales = r.centres + static_cast<int>(round_up(2 * padded, 16));
  r.head_offsets = r.page_scales + 8 * padded;
  r.tables = r.head_offsets + 8 * padded;
  r.page_queries = r.tables + r.passes * r.table_bytes();
  r.bytes = r.page_queries + r.passes * r.page_query_bytes();
  return r;
}
static_assert(sign_sum_record_of({}, {}, 128, 4).bytes == 16 + 16 + 16 + 32 + 32 + 2048 + 2048);

/// What a scan by sign sums knows beside the tables.
struct sign_sum_numbers {
  std::int16_t low = -16384;
  std::int16_t gain = 256;
  std::uint8_t reference = 128;
};

/// Votes: weights of buckets as bytes, subspaces of 8 [planes][256], of 4 [planes][2][16]; rows rounded up to 4, those beyond the last 0.
KVX_HD constexpr int vote_table_bytes(const key_sketch& sketch, int dim) {
  return (plane_bytes(dim) + 3) / 4 * 4 * (sketch.subspace == 8 ? 256 : 32);
}

/// Bytes of the record of one unit, a multiple of 64.
KVX_HD constexpr std::int64_t prepared_bytes(const key_sketch& sketch, const bucket_scoring& by, int dim, int group) {
  const int bytes =
      by.score == bucket_scoring::rule::votes ? vote_table_bytes(sketch, dim) : sign_sum_record_of(sketch, by, dim, group).bytes;
  return round_up(bytes, 64);
}

}  // namespace kvx
