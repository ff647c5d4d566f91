#pragma once
// Preparation of a search by votes: how many keys each bucket holds, and what weight its rank gives it.

#include <kvx/core/check.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/index/host/sign_sums.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // nvcc hands `#pragma GCC unroll` on to the host compiler, but warns of it
#endif

namespace kvx {

/// Entries of a table of bucket counts: keys of each value of each plane byte, (planes, 256). Buckets of four signs are sums of these.
constexpr std::int64_t bucket_count_entries(int dim) { return std::int64_t{256} * plane_bytes(dim); }

/// Counts eight bytes of each of two planes in their tables. In turns, since neighbours in one plane often share a bucket and would
/// wait for each other; written out, since compilers keep short loops rolled at -O2.
inline void count_bytes(const std::uint8_t* first, const std::uint8_t* second, std::uint32_t* c, std::uint32_t by) {
  std::uint64_t x, y;
  std::memcpy(&x, first, 8);
  std::memcpy(&y, second, 8);
  c[x & 255] += by;
  c[256 + (y & 255)] += by;
  c[x >> 8 & 255] += by;
  c[256 + (y >> 8 & 255)] += by;
  c[x >> 16 & 255] += by;
  c[256 + (y >> 16 & 255)] += by;
  c[x >> 24 & 255] += by;
  c[256 + (y >> 24 & 255)] += by;
  c[x >> 32 & 255] += by;
  c[256 + (y >> 32 & 255)] += by;
  c[x >> 40 & 255] += by;
  c[256 + (y >> 40 & 255)] += by;
  c[x >> 48 & 255] += by;
  c[256 + (y >> 48 & 255)] += by;
  c[x >> 56] += by;
  c[256 + (y >> 56)] += by;
}

/// Adds the keys of some pages of a zone to bucket counts, or takes them out.
///
/// what        counts[j][v] += 1 (or -= 1) for every key of [begin, end) in pages [first, last) whose plane byte j is v
/// shapes      counts (bucket_count_entries), the caller's: kept beside a sequence they cost one page a commit instead of a pass a search
/// cost        one increment a plane byte: 16 a key at D 128
inline void count_buckets(const host&, const bucket_zone& z, std::int64_t first, std::int64_t last, std::uint32_t* counts,
                          std::uint32_t by = 1) {
  const int planes = plane_bytes(z.page.key_dim);
  const std::int64_t tokens = z.page.tokens;
  for (std::int64_t i = first; i < last; ++i) {
    if (i + 1 < last) prefetch_block(z.block(column_signs, i + 1), planes * tokens);
    const std::int64_t from = std::max<std::int64_t>(z.begin - i * tokens, 0);
    const std::int64_t to = std::min<std::int64_t>(z.end - i * tokens, tokens);
    const auto* const signs = reinterpret_cast<const std::uint8_t*>(z.block(column_signs, i));
    int p = 0;
    for (; p + 2 <= planes; p += 2) {
      const std::uint8_t* const s = signs + p * tokens;
      std::uint32_t* const c = counts + std::int64_t{256} * p;
      std::int64_t t = from;
      for (; t + 8 <= to; t += 8) count_bytes(s + t, s + tokens + t, c, by);
      for (; t < to; ++t) {
        c[s[t]] += by;
        c[256 + s[tokens + t]] += by;
      }
    }
    for (; p < planes; ++p) {
      for (std::int64_t t = from; t < to; ++t) counts[std::int64_t{256} * p + signs[p * tokens + t]] += by;
    }
  }
}

/// The buckets of one subspace, best first.
///
/// what        order by what a bucket lacks to the best one, the sum of its wrong coordinates' sizes, then by id
/// shapes      sizes (width) integers below 2^25; best: the id of all right signs; order (2^width) of lack << 8 | id
/// exactness   integers
/// cost        2^(width + 1) steps: the order of width - 1 coordinates, merged with itself moved by the last one's size
inline void order_buckets(const std::int64_t* sizes, int width, int best, std::uint64_t* order) {
  std::uint64_t shorter[128];
  order[0] = static_cast<std::uint64_t>(best);
  for (int j = 0, n = 1; j < width; ++j, n *= 2) {
    std::copy_n(order, n, shorter);
    const std::uint64_t lack = static_cast<std::uint64_t>(sizes[j]) << 8, flip = std::uint64_t{1} << j;
    int a = 0, b = 0;
    for (int i = 0; i < 2 * n; ++i) {
      const std::uint64_t right = shorter[a < n ? a : n - 1];
      const std::uint64_t wrong = (shorter[b < n ? b : n - 1] + lack) ^ flip;
      const bool take_right = b == n || (a < n && right < wrong);
      order[i] = take_right ? right : wrong;
      a += take_right ? 1 : 0;
      b += take_right ? 0 : 1;
    }
  }
}

/// Where the prepared parts of votes lie.
struct vote_parts {
  std::uint8_t* weights;
  std::uint8_t* bits;
  std::uint32_t* nibble_counts;

  vote_parts(scratch_parts& s, int dim, int subspace)
      : weights(s.take<std::uint8_t>(std::int64_t{subspace == 8 ? 256 : 32} * plane_bytes(dim))),
        bits(s.take<std::uint8_t>(subspace == 8 ? std::int64_t{96} * plane_bytes(dim) : 0)),
        nibble_counts(s.take<std::uint32_t>(32)) {}
};

/// Bytes that prepare_votes needs, at an address that is a multiple of 64; the prepared query lives in them.
inline std::int64_t vote_bytes(const key_sketch& sketch, int dim) {
  scratch_parts s;
  vote_parts(s, dim, sketch.subspace);
  return s.used;
}

/// Prepares a search by votes of the mean query.
///
/// what        in every subspace the buckets are taken in the order of <q~_b, sign pattern>, whole ones while those before hold less
///             than `window` keys; one before which less than 5, 15, 30, 50, 75, 100 % of the window lie has weight 6, 5, 4, 3, 2, 1.
///             A key's votes are the sum of the weights of its buckets, halved until they fit a byte
/// shapes      rotated (G, D); counts (bucket_count_entries) of the keys searched; window: window_count(); scratch vote_bytes
/// exactness   integers, after |q~_j| has been taken in units of 2^-24 of the largest; equal buckets: the lower id first
/// errors      usage_error for shapes that do not fit; queries that are not finite are left out of the mean
/// cost        512 steps a subspace of 8
/// source      ParisKV (arXiv 2602.07721) section 4; a bucket's tier is that of the first of its keys
inline bucket_query prepare_votes(const host&, const key_sketch& sketch, int dim, tensor_view<const float, 2> rotated,
                                  const std::uint32_t* counts, std::int64_t window, std::span<std::byte> scratch,
                                  call_site where = call_site::here()) {
  require_range("prepare_votes: dim", dim, 1, 576, where);
  require(can_score(sketch, voting), "prepare_votes: subspace must be 4 or 8", where);
  require_range("prepare_votes: components of a query", rotated.extents[1], dim, dim, where);
  require(static_cast<std::int64_t>(scratch.size()) >= vote_bytes(sketch, dim), "prepare_votes: scratch is smaller than vote_bytes", where);
  double sum[576] = {}, largest = 0;
  for (std::int64_t g = 0; g < rotated.extents[0]; ++g) {
    float row[576];
    for (int d = 0; d < dim; ++d) row[d] = *rotated.at(g, d);
    for (int d = 0; d < dim && all_finite(row, dim); ++d) sum[d] += static_cast<double>(row[d]);
  }
  for (int d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(sum[d]));
  std::int64_t sizes[576];                                              // (D)
  for (int d = 0; d < dim; ++d) sizes[d] = vote_size(sum[d], largest);

  const int m = sketch.subspace, planes = plane_bytes(dim), parts = subspaces(sketch, dim);
  scratch_parts memory{scratch.data()};
  const vote_parts part(memory, dim, m);
  std::fill_n(part.weights, (m == 8 ? 256 : 32) * planes, std::uint8_t{0});
  for (int b = 0; b < parts; ++b) {
    const int first = b * m, width = std::min(m, dim - first);
    const std::uint32_t* keys = counts + 256 * (first / 8);             // (2^width)
    if (m == 4) {
      std::fill_n(part.nibble_counts, 16, 0u);
      for (int v = 0; v < 256; ++v) part.nibble_counts[v >> (first % 8) & 15] += keys[v];
      keys = part.nibble_counts;
    }
    int best = 0;
    for (int j = 0; j < width; ++j) best |= (sum[first + j] >= 0 ? 1 : 0) << j;
    std::uint64_t order[256];
    order_buckets(sizes + first, width, best, order);
    std::uint8_t* const weights = part.weights + (m == 8 ? 256 : 16) * b;
    std::int64_t before = 0;
    for (int i = 0; i < 1 << width && before < window; ++i) {
      const int id = static_cast<int>(order[i] & 255);
      weights[id] = static_cast<std::uint8_t>(vote_weight(before, window));
      before += keys[id];
    }
  }
  if (m == 8) {
    std::fill_n(part.bits, 96 * planes, std::uint8_t{0});
    for (int p = 0; p < planes; ++p) {
      for (int v = 0; v < 256; ++v) {
        for (int i = 0; i < 3; ++i) {
          const int bit = part.weights[256 * p + v] >> i & 1;
          part.bits[96 * p + 32 * i + v % 16 + 16 * (v / 128)] |= static_cast<std::uint8_t>(bit << (v / 16 % 8));
        }
      }
    }
  }
  bucket_query q;
  q.score = bucket_scoring::rule::votes;
  q.dim = dim;
  q.norms = sketch.norms;
  q.votes = {part.weights, part.bits, m, planes, vote_shift(parts)};
  return q;
}

}  // namespace kvx

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif
