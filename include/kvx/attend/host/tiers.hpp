#pragma once
// Attention to tokens whose rows are not read, on the host: coded rows and the tail of one KV head.

#include <kvx/attend/softmax_state.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/fixed_point.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/index/host/sign_sums.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_norm.hpp>
#include <kvx/sketch/value_code.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace kvx {

namespace host_tiers {

constexpr std::int64_t pages_of(std::int64_t tokens, int page_tokens) { return ceil_div(tokens, std::int64_t{page_tokens}) + 1; }
constexpr std::int64_t row_pitch(std::int64_t n) { return round_up(n, 16); }

/// Scratch for zones of at most `tokens` tokens.
struct parts {
  float* page_queries;      // (G, page_pitch)
  double* page_units;       // (G)
  float* tail;              // (G, row_pitch(pages)): scores of pages, then their weights
  std::int32_t* taken;      // (C)
  float* shares;            // (C)
  float* mean_sums;         // (G, pitch)
  float* code_sums;         // (G, value_sums_pitch)
  float* logs;              // (P + 1)
  std::int64_t mean_pitch;
  std::int64_t code_pitch;
  std::int64_t tail_pitch;

  parts(scratch_parts& s, page_shape page, int bits, std::int64_t G, std::int64_t tokens) {
    const std::int64_t pages = pages_of(tokens, page.tokens);
    mean_pitch = round_up(page.value_dim, simd::padding);
    const simd::value_format format{page.value_dim, value_row_bytes(bits, page.value_dim), nullptr};
    code_pitch = bits > 0 ? simd::value_sums_pitch(format, bits) : 0;
    tail_pitch = row_pitch(pages);
    page_queries = s.take<float>(G * sign_sum_parts::page_pitch(page.key_dim));
    page_units = s.take<double>(G);
    tail = s.take<float>(G * tail_pitch);
    taken = s.take<std::int32_t>(tokens);
    shares = s.take<float>(tokens);
    mean_sums = s.take<float>(G * mean_pitch);
    code_sums = s.take<float>(G * code_pitch);
    logs = s.take<float>(page.tokens + 1);
  }
};

}  // namespace host_tiers

/// Bytes of scratch that attend_tiers needs.
inline std::int64_t attend_tiers_scratch(page_shape page, int value_bits, std::int64_t heads, std::int64_t tokens) {
  scratch_parts s;
  host_tiers::parts(s, page, value_bits, heads, tokens);
  return s.used;
}

/// The pages of a zone, and which of their tokens are taken out of the tail.
///
/// starts      (pages + 1): where the members of a page begin among the candidates
/// left        (pages): tokens of a page that its tail stands for, 0 where it has none
struct tier_pages {
  std::int32_t* starts = nullptr;
  std::int32_t* left = nullptr;

  static constexpr std::int64_t entries(page_shape page, std::int64_t tokens) { return host_tiers::pages_of(tokens, page.tokens) + 1; }
};

/// Finds members and tails of all pages. A page has a tail where it lies whole in the zone, holds no key that is never found, and has at
/// least fewest_in_tail tokens left.
///
/// ids         (C), ascending candidates; wanted: how many a search was asked for
/// all         null, or room for all tokens of the zone: candidates again, with every token that is found of the pages that have no tail,
///             as far as most_in_codes allows it
/// returns     how many candidates there are then
inline std::int64_t find_tails(const bucket_zone& z, std::span<const std::int32_t> ids, const tier_pages& pages, std::int32_t* all,
                               std::int64_t wanted = 0) {
  const std::int64_t P = z.page.tokens, first = z.first_page();
  const auto find = [&](bool of_broken_pages) {
    const std::int32_t *from = ids.data(), *const last = from + ids.size();
    std::int64_t taken = 0;
    for (std::int64_t i = first; i < z.last_page(); ++i) {
      const std::int64_t begin = std::max(z.begin, i * P), end = std::min(z.end, (i + 1) * P);
      const std::int32_t* to = from;
      while (to != last && *to < end) ++to;
      const auto* const norms = reinterpret_cast<const std::uint8_t*>(z.block(column_norms, i));
      const std::int64_t left = P - (to - from);
      const bool broken = std::memchr(norms + (begin - i * P), never_found, static_cast<std::size_t>(end - begin)) != nullptr;
      const bool has_tail = left >= fewest_in_tail && end - begin == P && !broken;
      pages.starts[i - first] = static_cast<std::int32_t>(taken);
      pages.left[i - first] = has_tail ? static_cast<std::int32_t>(left) : 0;
      if (all == nullptr || has_tail || (broken && !of_broken_pages)) {
        if (all != nullptr) std::copy(from, to, all + taken);
        taken += to - from;
      } else {
        for (std::int64_t t = begin; t < end; ++t) {
          if (norms[t - i * P] != never_found) all[taken++] = static_cast<std::int32_t>(t);
        }
      }
      from = to;
    }
    pages.starts[z.last_page() - first] = static_cast<std::int32_t>(taken);
    return taken;
  };
  const std::int64_t taken = find(true);
  return all != nullptr && taken > most_in_codes(z.end - z.begin, wanted, P) ? find(false) : taken;
}

/// What attend_tiers reads of one KV head of one sequence.
///
/// zone        the retrieval zone, with the columns of the keys
/// pages       of the zone, by find_tails for `ids`
/// values      the columns of the values; bits: of a coordinate, 0 for none
/// seed        of the rotation
/// ids         (C), ascending candidates: the tokens that are taken out of the tail
/// exact       positions among them, ascending: tokens whose rows are attended to
/// plain       queries (G, D); page_dots (pages of the zone, G) as a search left them, or null
/// scale, soft_cap    as attention has them
struct tier_view {
  bucket_zone zone;
  tier_pages pages;
  value_columns values;
  int bits = 0;
  std::uint64_t seed = 0;
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> exact;
  tensor_view<const float, 2> plain;
  const float* page_dots = nullptr;
  float scale = 1;
  float soft_cap = 0;
};

namespace host_tiers {

/// The kernels of one instruction set.
struct kernels_used {
  const simd::kernel_table& rows;
  const simd::rerank_table& weights;
  const simd::scan_table& pages;
  simd::value_function values;
};

inline float capped(float logit, float cap) { return cap > 0 ? cap * std::tanh(logit / cap) : logit; }

/// Sums of up to four rows over [begin, end) of their columns.   rows (count), sums (4)
[[gnu::always_inline]] inline void sum_members(const float* const* rows, int count, std::int64_t begin, std::int64_t end, float* sums) {
  float a = 0, b = 0, c = 0, d = 0;
  if (count == 4) {  // side by side: none waits for another
    for (std::int64_t m = begin; m < end; ++m) {
      a += rows[0][m];
      b += rows[1][m];
      c += rows[2][m];
      d += rows[3][m];
    }
  } else {
    for (std::int64_t m = begin; m < end; ++m) {
      a += rows[0][m];
      if (count > 1) b += rows[1][m];
      if (count > 2) c += rows[2][m];
    }
  }
  sums[0] = a;
  sums[1] = b;
  sums[2] = c;
  sums[3] = d;
}

/// The tail's scores: log(left) + the mean logit of what is left; -inf where nothing is.
inline void score_pages(const kernels_used& kernels, const tier_view& of, tensor_view<const float, 2> logits, const parts& p) {
  const bucket_zone& z = of.zone;
  const std::int64_t G = logits.extents[0], P = z.page.tokens, D = z.page.key_dim;
  const std::int64_t first = z.first_page(), pages = z.last_page() - first, pitch = sign_sum_parts::page_pitch(static_cast<int>(D));
  for (std::int64_t g = 0; g < G; ++g) {
    float plain[576];
    for (std::int64_t d = 0; d < D; ++d) plain[d] = *of.plain.at(g, d);
    p.page_units[g] = static_cast<double>(of.scale) * fill_page_query(plain, static_cast<int>(D), p.page_queries + g * pitch);
  }
  for (std::int64_t n = 1; n <= P; ++n) p.logs[n] = log(static_cast<float>(n));
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::int32_t left = of.pages.left[page], begin = of.pages.starts[page], end = of.pages.starts[page + 1];
    float computed[simd::most_value_heads];                                                         // (G)
    const float* dots = computed;
    if (left == 0) {
      for (std::int64_t g = 0; g < G; ++g) p.tail[g * p.tail_pitch + page] = -infinity;
      continue;
    }
    if (of.page_dots != nullptr) {
      dots = of.page_dots + page * G;
    } else {
      kernels.pages.page_dots(p.page_queries, pitch, static_cast<int>(G),
                              reinterpret_cast<const bf16*>(z.block(column_means, first + page)), static_cast<int>(D), computed);
    }
    for (std::int64_t g = 0; g < G; g += 4) {
      const int count = static_cast<int>(std::min<std::int64_t>(G - g, 4));
      const float* rows[4] = {};
      for (int i = 0; i < count; ++i) rows[i] = logits.at(g + i, 0);
      float sums[4];
      sum_members(rows, count, begin, end, sums);
      for (int i = 0; i < count; ++i) {
        const auto term = static_cast<float>(p.page_units[g + i] * static_cast<double>(dots[g + i]));
        const float members = sums[i] - static_cast<float>(end - begin) * term;
        p.tail[(g + i) * p.tail_pitch + page] = p.logs[left] + capped(tail_logit(term, members, left), of.soft_cap);
      }
    }
  }
}

/// Adds the means of the pages, each as often as its tail and its coded members weigh.   weights: tail (G, pages), coded (G, C)
inline void add_means(const kernels_used& kernels, const tier_view& of, tensor_view<const float, 2> coded, const parts& p) {
  constexpr int B = simd::block_tokens;
  const simd::row_kernels<bf16>& rows = kernels.rows.rows<bf16>();
  const std::int64_t G = coded.extents[0], first = of.zone.first_page(), pages = of.zone.last_page() - first;
  std::fill_n(p.mean_sums, G * p.mean_pitch, 0.0f);
  float ones[simd::most_value_heads], weights[simd::most_value_heads * B];                          // (G), (G, B)
  std::fill_n(ones, G, 1.0f);
  const bf16* address[2][B];
  const auto find = [&](std::int64_t begin, const bf16** at) {
    const auto n = static_cast<int>(std::clamp<std::int64_t>(pages - begin, 0, B));
    for (int i = 0; i < n; ++i) at[i] = values_of(of.values, of.zone.pages[first + begin + i], of.zone.head).means;
    return n;
  };
  int now = 0, n = find(0, address[0]);
  for (std::int64_t begin = 0; begin < pages; begin += B) {
    const int next_n = find(begin + B, address[1 - now]);
    for (std::int64_t g = 0; g < G; g += 4) {
      const int count = static_cast<int>(std::min<std::int64_t>(G - g, 4));
      const float* row[4] = {};
      for (int j = 0; j < count; ++j) row[j] = coded.at(g + j, 0);
      for (int i = 0; i < n; ++i) {
        float w[4];
        sum_members(row, count, of.pages.starts[begin + i], of.pages.starts[begin + i + 1], w);
        for (int j = 0; j < count; ++j) weights[(g + j) * B + i] = w[j] + p.tail[(g + j) * p.tail_pitch + begin + i];
      }
    }
    rows.weighted_sum(weights, ones, static_cast<int>(G), address[now], n, address[1 - now], next_n, of.zone.page.value_dim, p.mean_sums,
                      p.mean_pitch);
    now = 1 - now;
    n = next_n;
  }
}

/// Adds what coded values are beside the means of their pages, in rotated space.   weights (G, C), those of tokens in `taken` are read
inline void add_codes(const kernels_used& kernels, const tier_view& of, tensor_view<const float, 2> weights,
                      std::span<const std::int32_t> taken, const value_levels& levels, const parts& p) {
  constexpr int B = simd::value_block;
  const std::int64_t G = weights.extents[0];
  const simd::value_format format{of.zone.page.value_dim, value_row_bytes(of.bits, of.zone.page.value_dim), levels.level.data()};
  std::fill_n(p.code_sums, G * p.code_pitch, 0.0f);
  struct block {
    int n = 0;
    const std::uint8_t* codes[B];
    const half* scales[B];
  } blocks[2];
  const int shift = page_shift_of(of.zone.page.tokens);
  const std::int64_t mask = of.zone.page.tokens - 1;
  const column_array &codes = of.values[value_codes], &scales = of.values[value_scales];
  const auto* const first_code = reinterpret_cast<const std::uint8_t*>(codes.at(0, of.zone.head));
  const std::byte* const first_scale = scales.at(0, of.zone.head);
  const auto find = [&](std::size_t begin, block& b) {
    b.n = static_cast<int>(std::min<std::size_t>(taken.size() - std::min(begin, taken.size()), B));
    for (int t = 0; t < b.n; ++t) {
      const std::int32_t id = of.ids[static_cast<std::size_t>(taken[begin + static_cast<std::size_t>(t)])];
      const std::int64_t page = of.zone.pages[id >> shift], slot = id & mask;
      b.codes[t] = first_code + page * codes.pitch + slot * format.row_bytes;
      b.scales[t] = reinterpret_cast<const half*>(first_scale + page * scales.pitch) + slot;
      __builtin_prefetch(b.scales[t]);
    }
  };
  block *now = &blocks[0], *next = &blocks[1];
  find(0, *now);
  float scaled[simd::most_value_heads * B];                                                         // (G, B)
  for (std::size_t begin = 0; begin < taken.size(); begin += B) {
    find(begin + B, *next);
    half stored[B];
    float scale[B + simd::padding];
    for (int t = 0; t < now->n; ++t) stored[t] = *now->scales[t];
    kernels.rows.conversions<half>().to_floats(stored, now->n, scale);
    for (std::int64_t g = 0; g < G; ++g) {
      const float* const row = weights.at(g, 0);
      float* const to = scaled + g * B;
      for (int t = 0; t < now->n; ++t) to[t] = row[taken[begin + static_cast<std::size_t>(t)]] * scale[t];
      std::fill(to + now->n, to + B, 0.0f);
    }
    kernels.values(format, now->codes, now->n, next->codes, next->n, scaled, static_cast<int>(G), p.code_sums, p.code_pitch);
    std::swap(now, next);
  }
}

/// attend_tiers by the kernels of a given instruction set.
inline void attend(const kernels_used& kernels, const tier_view& of, const tier_options& options, tensor_view<float, 2> logits,
                   const value_levels& levels, std::span<softmax_state> states, tensor_view<float, 2> sums, const parts& p) {
  const std::int64_t G = logits.extents[0], C = logits.extents[1], Dv = of.zone.page.value_dim;
  const std::int64_t pages = of.zone.last_page() - of.zone.first_page();
  score_pages(kernels, of, read_only(logits), p);
  float factors[simd::most_value_heads];                                                            // (G)
  softmax_state found[simd::most_value_heads];                                                      // (G)
  for (std::int64_t g = 0; g < G; ++g) {
    float* const row = logits.at(g, 0);
    float* const tail = p.tail + g * p.tail_pitch;
    if (of.soft_cap > 0) {
      for (std::int64_t t = 0; t < C; ++t) row[t] = capped(row[t], of.soft_cap);
    }
    for (const std::int32_t t : of.exact) row[t] = -infinity;
    if (!options.tail) std::fill_n(tail, pages, -infinity);
    const float max = std::max(kernels.weights.largest(row, C), kernels.weights.largest(tail, pages));
    const std::int64_t sum = kernels.weights.exponentials(row, C, max, row) + kernels.weights.exponentials(tail, pages, max, tail);
    if (max != -infinity) found[g] = {max, static_cast<float>(from_fixed_point(sum))};
    softmax_state all = states[static_cast<std::size_t>(g)];
    const merge_weights share = merge(all, found[g]);
    factors[g] = all.sum > 0 ? share.b / all.sum : 0;
  }
  add_means(kernels, of, read_only(logits), p);
  std::span<const std::int32_t> taken;
  if (of.bits > 0 && C > static_cast<std::int64_t>(of.exact.size())) {
    kernels.weights.mix(logits.at(0, 0), logits.strides[0], static_cast<int>(G), factors, C, p.shares);
    const float level = options.skip > 0 ? options.skip / static_cast<float>(C) : 0x1p-126f;
    taken = {p.taken, static_cast<std::size_t>(kernels.weights.take_at_least(p.shares, C, level, 0, p.taken))};
    add_codes(kernels, of, read_only(logits), taken, levels, p);
  }
  for (std::int64_t g = 0; g < G; ++g) {
    float values[576] = {};                                                                         // (Dv)
    if (!taken.empty()) {
      for (int d = 0; d < Dv; ++d) values[d] = levels.unit * p.code_sums[g * p.code_pitch + simd::value_place(of.bits, d)];
      rotate_back(values, static_cast<std::size_t>(Dv), of.seed);
    }
    const merge_weights w = merge(states[static_cast<std::size_t>(g)], found[g]);
    for (int d = 0; d < Dv; ++d) {
      float* const to = sums.at(g, d);
      *to = w(*to, values[d] + p.mean_sums[g * p.mean_pitch + simd::lane_position<bf16>(d, kernels.rows.lanes)]);
    }
  }
}

}  // namespace host_tiers

/// Takes coded rows and the tail into a partial attention, on the caller's thread.
///
/// what        states and sums become those of what they stood for and of: the candidates that are not exact, by the logits of their key
///             codes and their value codes; and, for each page, what is left of it, as often as it is, by the mean of its logits and the
///             mean of the page's values
/// shapes      logits (G, C), rows dense, of all candidates by their codes: overwritten; states (G); sums (G, Dv), undivided; scratch of
///             attend_tiers_scratch bytes for the zone, a multiple of 64
/// units       logits in nats
/// cost        exponentials of G (C + pages) logits, V codes of the candidates that matter (tier_options::skip), a mean for each page
/// exactness   integers and float sums in an order that depends on the arguments alone; instruction sets differ by rounding. A page all of
///             whose tokens are taken out adds nothing, bit for bit
/// source      ours: docs/tiers.md
template <int ValueBits>
void attend_tiers(const tier_view& of, const tier_options& options, tensor_view<float, 2> logits, std::span<softmax_state> states,
                  tensor_view<float, 2> sums, std::span<std::byte> scratch) {
  scratch_parts memory{scratch.data()};
  const host_tiers::parts p(memory, of.zone.page, ValueBits, logits.extents[0], of.zone.end);
  value_levels levels;
  simd::value_function values = nullptr;
  if constexpr (ValueBits > 0) {
    levels = value_levels_of<ValueBits>(of.zone.page.value_dim);
    values = simd::value_sums_of<ValueBits>(simd_level().used);
  }
  host_tiers::attend({simd::kernels(), simd::rerank_kernels(), simd::scan_kernels(), values}, of, options, logits, levels, states, sums, p);
}

}  // namespace kvx
