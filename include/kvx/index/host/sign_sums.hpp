#pragma once
// Preparation of a search by sign sums: from the queries of a group to byte tables, and to a scale that fits the keys at hand.

#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/index/sign_sums.hpp>
#include <kvx/sketch/key_norm.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace kvx {

/// Queries of one group.
///
/// rotated     (G, D) divided by the balance and rotated, as the keys' codes are
/// plain       (G, D) as they are: they meet the page means. Not read where the sketch has no centre or no norms
/// lse         (G) log-sum-exp of each head's resident logits in nats, or null; what is not finite counts as 0
/// scale       of the softmax, > 0
struct bucket_queries {
  tensor_view<const float, 2> rotated;
  tensor_view<const float, 2> plain;
  const float* lse = nullptr;
  float scale = 1;
};

/// Where the prepared parts lie.
struct sign_sum_parts {
  std::uint8_t* tables;
  std::int16_t* ratios;
  std::int16_t* centres;
  float* page_queries;
  double* page_scales;
  double* head_offsets;
  float* mean_queries;  ///< (2, D)

  static constexpr std::int64_t page_pitch(int dim) { return round_up(dim, 16); }

  sign_sum_parts(scratch_parts& s, int dim, int heads)
      : tables(s.take<std::uint8_t>(std::int64_t{32} * plane_bytes(dim) * heads)),
        ratios(s.take<std::int16_t>(heads)),
        centres(s.take<std::int16_t>(heads)),
        page_queries(s.take<float>(page_pitch(dim) * heads)),
        page_scales(s.take<double>(heads)),
        head_offsets(s.take<double>(heads)),
        mean_queries(s.take<float>(2 * dim)) {}
};

/// Bytes that prepare_sign_sums needs, at an address that is a multiple of 64; the prepared query lives in them.
inline std::int64_t sign_sum_bytes(int dim, int heads) {
  scratch_parts s;
  sign_sum_parts(s, dim, heads);
  return s.used;
}

inline bool all_finite(const float* x, int n) {
  return std::all_of(x, x + n, [](float v) { return is_finite(v); });
}

/// Tables of one head, in units of 1 / `c` of a coordinate: entry i of four coordinates is the floor of c times the sum of |q_j| over
/// those whose sign is bit j of i. The sum of a key's entries then is c (|q|_1 + sum_j sign_j q_j) / 2, less what the floors took.
///
/// c           so that sums fit: all largest entries together 255 up to 32 plane bytes, beyond it the largest entry 63
/// returns     c and the sum of all entries, which is 16 times the mean sum; c 0 for the query 0
inline std::pair<double, std::int64_t> fill_sign_tables(const float* q, int dim, std::uint8_t* tables, std::int64_t pitch) {
  const int planes = plane_bytes(dim);
  double whole = 0, largest = 0;
  for (int d = 0; d < dim; d += 4) {
    double sum = 0;
    for (int j = d; j < std::min(d + 4, dim); ++j) sum += std::fabs(static_cast<double>(q[j]));
    whole += sum;
    largest = std::max(largest, sum);
  }
  const double c = sign_table_unit(whole, largest, planes > simd::narrow_planes);
  std::int64_t total = 0;
  for (int p = 0; p < planes; ++p) {
    for (int half = 0; half < 2; ++half) {
      double sums[16] = {};  // of the first coordinates, ascending: entry i has those whose sign is their bit of i
      for (int j = 0, n = 1; j < 4; ++j, n *= 2) {
        const int d = 8 * p + 4 * half + j;
        const double size = d < dim ? std::fabs(static_cast<double>(q[d])) : 0;
        const bool positive = d < dim && q[d] >= 0;
        const double clear = positive ? 0 : size, set = positive ? size : 0;
        for (int i = 0; i < n; ++i) {
          sums[i + n] = sums[i] + set;
          sums[i] += clear;
        }
      }
      for (int i = 0; i < 16; ++i) {
        const int entry = static_cast<int>(c * sums[i]);
        tables[p * pitch + 16 * half + i] = static_cast<std::uint8_t>(entry);
        total += entry;
      }
    }
  }
  return {c, total};
}

/// A query as the page dots want it: a power of two times itself, largest component in [1/4, 1/2), 16 significant bits. Returns the
/// power of two that undoes it.
inline double fill_page_query(const float* q, int dim, float* out) {
  float largest = 0;
  for (int d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(q[d]));
  const int exponent = exponent_of(largest);
  std::fill(out, out + sign_sum_parts::page_pitch(dim), 0.0f);
  for (int d = 0; d < dim; ++d) out[d] = page_query_component(q[d], power_of_two(-exponent - 1));
  return power_of_two(exponent + 1);
}

/// Calls visit(i, from, to) for the sampled pages of the zone, evenly apart: slots [from, to) of entry i of the page table.
template <class Visit>
void for_sampled_pages(const bucket_zone& z, const Visit& visit) {
  const std::int64_t first = z.first_page(), n = z.last_page() - first, count = std::min(n, sampled_pages(z.page.tokens));
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t i = sampled_page(first, n, count, s), start = i * z.page.tokens;
    visit(i, std::max<std::int64_t>(z.begin - start, 0), std::min<std::int64_t>(z.end - start, z.page.tokens));
  }
}

/// The reference_byte of a zone.
inline std::uint8_t reference_norm(const bucket_zone& z) {
  std::uint32_t histogram[256] = {};
  std::int64_t keys = 0, below = 0;
  for_sampled_pages(z, [&](std::int64_t i, std::int64_t from, std::int64_t to) {
    const std::byte* const norms = z.block(column_norms, i);
    for (std::int64_t t = from; t < to; ++t) {
      if (norms[t] == std::byte{never_found}) continue;
      ++histogram[static_cast<std::uint8_t>(norms[t])];
      ++keys;
    }
  });
  if (keys == 0) return 128;
  int median = 0, largest = 255;
  while (below < median_place(keys)) below += histogram[++median];
  while (histogram[largest] == 0) --largest;
  return reference_byte(median, largest);
}

/// low and gain such that bytes spread over what the sampled keys score: from the lowest twentieth to an eighth above the largest.
inline void fit_bytes(bucket_query& q, const bucket_zone& z) {
  q.sums.low = coarse_scale.low;
  q.sums.gain = coarse_scale.gain;
  std::uint32_t histogram[256] = {};
  std::array<std::uint8_t, 65536> scores;
  for_sampled_pages(z, [&](std::int64_t i, std::int64_t from, std::int64_t to) {
    score_page(simd::scan_kernels(), q, z, i, scores.data());
    for (std::int64_t t = from; t < to; ++t) ++histogram[scores[static_cast<std::size_t>(t)]];
  });
  std::int64_t keys = 0, below = 0;
  for (int s = 1; s < 256; ++s) keys += histogram[s];
  if (keys == 0) return;
  int lowest = 0, largest = 255;
  while (below < twentieth_place(keys)) below += histogram[++lowest];
  while (histogram[largest] == 0) --largest;
  const byte_scale bytes = byte_scale_of(lowest, largest);
  q.sums.low = bytes.low;
  q.sums.gain = bytes.gain;
}

/// Prepares a search by sign sums.
///
/// what        tables of every head's query, or of their mean; then one scale for all heads, from at most 2,048 tokens of the zone. The
///             score of a key is the largest over heads of  scale (kappa norm sum_j sign_j q~_j + q.mean of its page) - lse,
///             kappa = sqrt(2 / (pi D)), as a word and then a byte: bucket_score.hpp. Without norms there is no norm, mean and lse in it
/// shapes      see bucket_queries; scratch sign_sum_bytes, at a multiple of 64 bytes; it must outlive the query
/// exactness   the same bits everywhere: sums in double in ascending order, products of floats exact
/// errors      usage_error for shapes that do not fit. A head whose query is not finite is left out; without any, all scores are equal
/// cost        about 40 D a head, and the scan of 2,048 tokens
inline bucket_query prepare_sign_sums(const host&, const key_sketch& sketch, bucket_scoring::query of, const bucket_zone& z,
                                      const bucket_queries& in, std::span<std::byte> scratch, call_site where = call_site::here()) {
  const int dim = z.page.key_dim, planes = plane_bytes(dim);
  require(is_valid(z.page), "prepare_sign_sums: no valid page shape", where);
  require_range("prepare_sign_sums: group", in.rotated.extents[0], 1, most_group_heads, where);
  require_range("prepare_sign_sums: components of a rotated query", in.rotated.extents[1], dim, dim, where);
  require(in.scale > 0 && in.scale < infinity, "prepare_sign_sums: scale must be positive and finite", where);
  const bool paged = sketch.centre && sketch.norms;
  if (paged) require_shape("prepare_sign_sums: plain", in.plain, {in.rotated.extents[0], dim}, where);
  const int group = static_cast<int>(in.rotated.extents[0]);
  const bool mean = of == bucket_scoring::query::mean_query;
  const int heads = mean ? 1 : group;
  require(static_cast<std::int64_t>(scratch.size()) >= sign_sum_bytes(dim, heads),
          "prepare_sign_sums: scratch is smaller than sign_sum_bytes", where);
  scratch_parts memory{scratch.data()};
  const sign_sum_parts part(memory, dim, heads);

  for_sampled_pages(z, [&](std::int64_t i, std::int64_t, std::int64_t) {
    prefetch_block(z.block(column_signs, i), std::int64_t{planes} * z.page.tokens);
    if (sketch.norms) prefetch_block(z.block(column_norms, i), z.page.tokens);
    if (paged) prefetch_block(z.block(column_means, i), 2 * dim);
  });
  const auto row = [&](const tensor_view<const float, 2>& view, int g, float* out) {
    for (int d = 0; d < dim; ++d) out[d] = *view.at(g, d);
  };
  float rotated[576], plain[576];                                       // (D)
  const auto load_head = [&](int g) {
    row(in.rotated, g, rotated);
    if (paged) row(in.plain, g, plain);
    return all_finite(rotated, dim) && (!paged || all_finite(plain, dim));
  };
  bool any = true;
  if (mean) {
    double sum[576] = {}, plain_sum[576] = {};
    int finite = 0;
    for (int g = 0; g < group; ++g) {
      if (!load_head(g)) continue;
      ++finite;
      for (int d = 0; d < dim; ++d) sum[d] += static_cast<double>(rotated[d]);
      for (int d = 0; paged && d < dim; ++d) plain_sum[d] += static_cast<double>(plain[d]);
    }
    any = finite > 0;
    for (int d = 0; d < dim; ++d) {
      part.mean_queries[d] = any ? static_cast<float>(sum[d] / finite) : 0;
      part.mean_queries[dim + d] = any ? static_cast<float>(plain_sum[d] / finite) : 0;
    }
  }

  bucket_query q;
  q.dim = dim;
  q.norms = sketch.norms;
  q.sums = {part.tables, part.ratios, part.centres, heads, planes, 128, -16384, 256};
  if (sketch.norms) q.sums.reference = reference_norm(z);
  if (paged) q.page_queries = part.page_queries;
  q.page_pitch = sign_sum_parts::page_pitch(dim);
  q.page_scales = part.page_scales;
  q.head_offsets = part.head_offsets;

  head_units units[most_group_heads];
  const bool wide = planes > simd::narrow_planes;
  const int steps = wide ? simd::wide_steps : simd::narrow_steps, middle = wide ? simd::wide_middle : simd::narrow_middle;
  const double kappa = sign_worth(dim);
  const double norm = sketch.norms ? static_cast<double>(norm_of(q.sums.reference)) : 1;
  double largest_unit = 0;
  for (int g = 0; g < heads; ++g) {
    head_units& u = units[g];
    const bool used = mean ? any : load_head(g);
    if (mean) {
      std::copy_n(part.mean_queries, dim, rotated);
      std::copy_n(part.mean_queries + dim, dim, plain);
    } else if (!used) {
      std::fill_n(rotated, dim, 0.0f);
      std::fill_n(plain, dim, 0.0f);
    }
    // tables of up to four heads lie side by side, plane by plane
    const int side = std::min(simd::scan_heads, heads - g / simd::scan_heads * simd::scan_heads);
    std::uint8_t* const tables =
        part.tables + std::int64_t{32} * planes * (g / simd::scan_heads * simd::scan_heads) + 32 * (g % simd::scan_heads);
    const auto [c, entries] = fill_sign_tables(rotated, dim, tables, 32 * side);
    const double undo = paged ? fill_page_query(plain, dim, part.page_queries + g * q.page_pitch) : 0;
    const bool offset = !mean && sketch.norms && in.lse != nullptr && is_finite(in.lse[g]);
    u = {sum_unit(in.scale, kappa, norm, c), static_cast<double>(in.scale) * undo, offset ? static_cast<double>(in.lse[g]) : 0, entries,
         used};
    if (used) largest_unit = std::max(largest_unit, u.sum);
  }

  // Scores are taken relative to the mean over sampled pages of what page and head add, the best head counting.
  double base = 0, spread = 0;
  {
    std::array<double, sampled_pages(1)> tops;
    std::int64_t pages = 0;
    for_sampled_pages(z, [&](std::int64_t i, std::int64_t, std::int64_t) {
      float dots[most_group_heads] = {};
      if (paged) {
        simd::scan_kernels().page_dots(part.page_queries, q.page_pitch, heads, reinterpret_cast<const bf16*>(z.block(column_means, i)), dim,
                                       dots);
      }
      double top = 0;
      if (page_top(units, dots, heads, top)) tops[static_cast<std::size_t>(pages++)] = top;
    });
    double sum = 0;
    for (std::int64_t p = 0; p < pages; ++p) sum += tops[static_cast<std::size_t>(p)];
    if (pages > 0) base = sum / static_cast<double>(pages);
    for (std::int64_t p = 0; p < pages; ++p) spread = std::max(spread, std::fabs(tops[static_cast<std::size_t>(p)] - base));
  }

  const double word = common_word(largest_unit, spread, steps);
  for (int g = 0; g < heads; ++g) {
    const head_words w = words_of(units[g], word, base, steps, middle);
    part.ratios[g] = w.ratio;
    part.centres[g] = w.centre;
    part.page_scales[g] = w.page_scale;
    part.head_offsets[g] = w.offset;
  }
  fit_bytes(q, z);
  return q;
}

}  // namespace kvx
