#pragma once
// Logits from key codes on the host.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/host/sign_sums.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/rerank/head_view.hpp>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/sketch/key_code.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvx {

namespace host_rsq {

/// Candidates of one task.
inline constexpr std::int64_t task_tokens = 1024;
static_assert(task_tokens % simd::code_block == 0);

/// Rows of whole queries: the kernels take one, two, or a multiple of four.
constexpr std::int64_t padded_heads(std::int64_t heads) { return heads <= 2 ? heads : round_up(heads, 4); }
constexpr std::int64_t whole_pitch(std::int64_t dim) { return round_up(dim, simd::code_chunk); }
constexpr std::int64_t page_pitch(std::int64_t dim) { return sign_sum_parts::page_pitch(static_cast<int>(dim)); }

/// Kernels of one instruction set.
struct kernels_used {
  const simd::rerank_table& code;
  const simd::scan_table& page;
};

/// The queries of a group as the kernels take them.
struct prepared {
  std::int8_t* whole;  // padded heads, in code_query_place; zero in its padding
  float* plain;        // (G, page_pitch): q as the page dots want it
  float* units;        // (G) nats for one unit of a code's sum
  double* page_units;  // (G) nats for one unit of a page dot, 24 significant bits

  prepared(scratch_parts& s, std::int64_t heads, std::int64_t dim)
      : whole(s.take<std::int8_t>(padded_heads(heads) * whole_pitch(dim))),
        plain(s.take<float>(heads * page_pitch(dim))),
        units(s.take<float>(heads)),
        page_units(s.take<double>(heads)) {}
};

inline std::int64_t prepared_bytes(std::int64_t heads, std::int64_t dim) {
  scratch_parts s;
  prepared(s, heads, dim);
  return s.used;
}

inline prepared prepare(const group_queries& queries, float scale, float level_unit, bool centre, std::byte* at) {
  const std::int64_t G = queries.rotated.extents[0], D = queries.rotated.extents[1];
  const std::int64_t pp = page_pitch(D);
  const auto count = static_cast<int>(padded_heads(G)), dim = static_cast<int>(D);
  scratch_parts memory{at};
  const prepared p(memory, G, D);
  std::fill_n(p.whole, count * whole_pitch(D), std::int8_t{0});
  for (std::int64_t g = 0; g < G; ++g) {
    const query_scale s = scale_of(queries.rotated.at(g, 0), queries.rotated.strides[1], static_cast<int>(D));
    p.units[g] = scale * s.unit * level_unit;
    for (int d = 0; d < dim; ++d) {
      p.whole[simd::code_query_place(count, dim, static_cast<int>(g), d)] = whole_component(*queries.rotated.at(g, d), s.inverse);
    }
    if (!centre) continue;
    float plain[576];
    for (std::int64_t d = 0; d < D; ++d) plain[d] = *queries.plain.at(g, d);
    p.page_units[g] = static_cast<double>(scale) * fill_page_query(plain, static_cast<int>(D), p.plain + g * pp);
  }
  return p;
}

/// Up to code_block candidates, and what their pages add to the logits.
struct block {
  int n = 0;
  simd::code_address keys[simd::code_block];
  float terms[most_rerank_heads * simd::code_block];                                                // (G, code_block)
};

/// Finds candidates, in order. All that happens once a page happens here, behind one branch.
template <class E>
class code_finder {
 public:
  code_finder(const kernels_used& kernels, const head_view<E>& from, const simd::code_format& format, const group_queries& asked,
              const prepared& queries, std::span<const std::int32_t> ids, int heads)
      : kernels_(kernels), from_(from), format_(format), asked_(asked), queries_(queries), ids_(ids), heads_(heads) {}

  /// Candidates from `first` on, before `last`.
  void find(std::int64_t first, std::int64_t last, block& b) {
    b.n = static_cast<int>(std::clamp<std::int64_t>(last - first, 0, simd::code_block));
    if (b.n == 0) return;
    const std::int32_t* const ids = ids_.data() + first;
    const int shift = page_shift_of(from_.rows.page_tokens);
    const std::int64_t mask = from_.rows.page_tokens - 1;
    for (int t = 0; t < b.n; ++t) {
      const std::int64_t page = ids[t] >> shift, slot = ids[t] & mask;
      if (page != page_) turn_to(page);
      b.keys[t] = {code_.signs + slot, code_.magnitudes + slot * format_.magnitude_bytes, code_.weights + slot * format_.weights};
      for (int g = 0; g < heads_; g += 4) {  // there is room for a multiple of four
        float* const to = b.terms + g * simd::code_block + t;
        to[0] = terms_[g];
        to[simd::code_block] = terms_[g + 1];
        to[2 * simd::code_block] = terms_[g + 2];
        to[3 * simd::code_block] = terms_[g + 3];
      }
    }
  }

 private:
  void turn_to(std::int64_t page) {
    page_ = page;
    const int D = format_.dim;
    code_ = code_of(from_.columns, from_.pages[page], from_.head);
    for (int d = 0; d < D; d += 8) __builtin_prefetch(code_.signs + d / 8 * format_.sign_pitch);
    if (code_.means == nullptr) return;
    float computed[most_rerank_heads];                                                              // (G)
    const float* dots = computed;
    if (asked_.page_dots != nullptr) {
      dots = asked_.page_dots + (page - asked_.first_page) * heads_;
    } else {
      kernels_.page.page_dots(queries_.plain, page_pitch(D), heads_, code_.means, D, computed);
    }
    for (int g = 0; g < heads_; ++g) terms_[g] = static_cast<float>(queries_.page_units[g] * static_cast<double>(dots[g]));
  }

  const kernels_used& kernels_;
  const head_view<E>& from_;
  const simd::code_format& format_;
  const group_queries& asked_;
  const prepared& queries_;
  std::span<const std::int32_t> ids_;
  int heads_;
  std::int64_t page_ = -1;
  page_code<false> code_;
  float terms_[most_rerank_heads] = {};                                                             // (G)
};

/// Logits of candidates [first, last) by the kernels of a given instruction set.
template <int Bits, class E>
void rerank_range(const kernels_used& kernels, const head_view<E>& from, const group_queries& asked, const simd::code_format& format,
                  const prepared& queries, std::span<const std::int32_t> ids, std::int64_t first, std::int64_t last,
                  tensor_view<float, 2> logits) {
  const auto G = static_cast<int>(logits.extents[0]);
  const simd::code_function code_sums = kernels.code.template code_sums<Bits - 1>();
  code_finder finder(kernels, from, format, asked, queries, ids, G);
  block blocks[2];
  block *now = &blocks[0], *next = &blocks[1];
  float sums[most_rerank_heads * simd::code_block];                                                 // (padded heads, code_block)
  finder.find(first, last, *now);
  for (std::int64_t begin = first; begin < last; begin += simd::code_block) {
    finder.find(begin + simd::code_block, static_cast<std::int64_t>(ids.size()), *next);  // the next task's too: often this thread's
    code_sums(format, queries.whole, static_cast<int>(padded_heads(G)), now->keys, now->n, next->keys, next->n, sums);
    for (int g = 0; g < G; ++g) {
      const std::int64_t row = g * simd::code_block;
      kernels.code.logits(queries.units[g], sums + row, now->terms + row, now->n, logits.at(g, begin));
    }
    std::swap(now, next);
  }
}

/// rerank by the kernels of a given instruction set.
template <int Bits, class E>
void rerank(const kernels_used& kernels, const host& exec, const key_sketch& sketch, const head_view<E>& from, const group_queries& queries,
            std::span<const std::int32_t> ids, tensor_view<float, 2> logits, std::span<std::byte> scratch) {
  const std::int64_t D = from.rows.key_dim, C = logits.extents[1];
  const whole_levels levels = whole_levels_of<Bits>(sketch, static_cast<int>(D));
  const float scale = logit_scale(queries.scale, D);
  void* start = scratch.data();
  std::size_t space = scratch.size();
  const prepared ready = prepare(queries, scale, levels.unit, sketch.centre, static_cast<std::byte*>(std::align(64, 1, start, space)));
  simd::code_format format;
  format.dim = static_cast<int>(D);
  format.subspace = sketch.weights == key_sketch::weighting::key ? 0 : sketch.subspace;
  format.magnitude_bytes = std::int64_t{Bits - 1} * plane_bytes(format.dim);
  format.weights = weights_per_key(sketch, format.dim);
  format.sign_pitch = from.rows.page_tokens;
  format.levels = levels.all.data();
  format.last_levels = levels.last.data();
  format.last = levels.last_from;
  head_view<E> codes = from;
  if (!sketch.centre) codes.columns[column_means].data = nullptr;  // whatever lies there
  for_each_task(exec, ceil_div(C, task_tokens), [&](std::int64_t task) {
    rerank_range<Bits>(kernels, codes, queries, format, ready, ids, task * task_tokens, std::min(C, (task + 1) * task_tokens), logits);
  });
}

}  // namespace host_rsq

/// Bytes of scratch that `rerank` needs for a group of G heads of D dims, however many candidates. A pure function of its arguments.
template <int Bits, tiers Others>
std::int64_t rerank_scratch(const host&, const rsq_ip<Bits, Others>&, int key_dim, std::int64_t heads) {
  return 64 + host_rsq::prepared_bytes(heads, key_dim);
}

/// Logits of candidates for every head of a group, from their codes.
///
/// what        see rsq_ip; one page mean is read for each run of candidates of one page
/// shapes      ids (C), ascending tokens whose pages are encoded; logits (G, C), rows dense; queries.plain (G, D) where the sketch has a
///             centre, queries.rotated (G, D)
/// units       logits in nats, scaled
/// cost        bits D / 8 + 2 D / m bytes a candidate, in as many cache lines as its signs have plane bytes and a few; bound by memory
/// exactness   the same bits for every instruction set and any number of threads; a key that is never found gets NaN
/// errors      usage_error for shapes that do not fit; ids are not checked
template <int Bits, tiers Others, element E>
void rerank(const host& exec, const rsq_ip<Bits, Others>& policy, const key_sketch& sketch, const head_view<E>& from,
            const group_queries& queries, std::span<const std::int32_t> ids, tensor_view<float, 2> logits, std::span<std::byte> scratch,
            call_site where = call_site::here()) {
  const std::int64_t G = queries.rotated.extents[0], D = from.rows.key_dim, C = static_cast<std::int64_t>(ids.size());
  require(is_valid(sketch), "rerank: the sketch is none that keys can have", where);
  require_range("rerank: bits of the sketch", sketch.bits, Bits, Bits, where);
  require_range("rerank: key_dim", D, 1, 576, where);
  require_range("rerank: heads of the group", G, 1, most_rerank_heads, where);
  require_shape("rerank: rotated queries", queries.rotated, {G, D}, where);
  if (sketch.centre) require_shape("rerank: plain queries", queries.plain, {G, D}, where);
  require_shape("rerank: logits", logits, {G, C}, where);
  require(logits.strides[1] == 1 || C <= 1, "rerank: rows of logits must be dense", where);
  require(static_cast<std::int64_t>(scratch.size()) >= rerank_scratch(exec, policy, static_cast<int>(D), G),
          "rerank: scratch is smaller than rerank_scratch", where);
  host_rsq::rerank<Bits>({simd::rerank_kernels(), simd::scan_kernels()}, exec, sketch, from, queries, ids, logits, scratch);
}

}  // namespace kvx
