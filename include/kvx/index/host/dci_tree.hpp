#pragma once
// The columns of semantic pages on the host: blocks of tokens are linked to the tree, packed into pages, and averaged.

#include <kvx/backend/host.hpp>
#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/host/dci_links.hpp>
#include <kvx/index/host/pack_block.hpp>
#include <kvx/index/host/page_code_writer.hpp>
#include <kvx/index/page_values.hpp>
#include <kvx/index/projections.hpp>
#include <kvx/index/query_metric.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

namespace kvx {

namespace host_dci {

/// Everything that indexing one head needs.
struct indexing_parts {
  float* rows;             // (block, pitch)
  double* squares;         // (block)
  std::int32_t* offsets;   // (block)
  std::int32_t* parents;   // (block)
  std::int32_t* order;     // (block)
  std::int32_t* level;     // (block) rows of the tokens of one level
  std::int32_t* page_of;   // (pages of a block) order in which pages are written
  float *mean, *asked_mean, *from_mean, *asked_from_mean;  // (pitch)
  float* lines;            // (lines, pitch)
  packing_parts packing;
  promoted_points points;
  page_code_writer codes;

  indexing_parts(scratch_parts& s, const dci_shape& shape, int page_tokens, int dim,
                 const std::array<std::int64_t, most_dci_level + 1>& counts)
      : rows(s.take<float>(shape.block * block_key_pitch(dim))),
        squares(s.take<double>(shape.block)),
        offsets(s.take<std::int32_t>(shape.block)),
        parents(s.take<std::int32_t>(shape.block)),
        order(s.take<std::int32_t>(shape.block)),
        level(s.take<std::int32_t>(shape.block)),
        page_of(s.take<std::int32_t>(shape.block / page_tokens)),
        mean(s.take<float>(block_key_pitch(dim))),
        asked_mean(s.take<float>(block_key_pitch(dim))),
        from_mean(s.take<float>(block_key_pitch(dim))),
        asked_from_mean(s.take<float>(block_key_pitch(dim))),
        lines(s.take<float>(lines_of(shape) * block_key_pitch(dim))),
        packing(s, shape.block, dim),
        points(s, counts, dim),
        codes(s, dim) {}
};

/// Fills the columns of one head, block after block.
template <class E>
class indexer {
 public:
  indexer(const dci_shape& shape, const dci_head<E>& of, const indexing_parts& parts)
      : shape_(shape), of_(of), at_(parts), convert_(simd::kernels().conversions<E>()), dim_(of.rows.key_dim) {
    for (int j = 0; j < lines_of(shape); ++j) {
      for (int d = 0; d < pitch(); ++d) at_.lines[j * pitch() + d] = d < dim_ ? line_component(shape.seed, j, d) : 0.0f;
    }
  }

  /// Takes up the promoted tokens of the blocks before `block`.
  void resume(std::int64_t block) {
    if (block == 0 || !keeps_links(shape_) || block * shape_.block <= of_.sink) return;
    const std::int64_t P = of_.rows.page_tokens, end = block * shape_.block;
    largest_ = 0;
    at_.points.set_radius(of_.packed(shape_, end / P - 1).radius());
    for (std::int64_t t = of_.sink; t < end; ++t) {
      const int level = level_of(shape_, t);
      if (level == 0 || of_.links_of(t / P)[t % P] == not_in_tree) continue;
      load(t, 0);
      at_.points.add(level, static_cast<std::int32_t>(t), at_.rows, at_.squares[0]);
    }
  }

  void index(std::int64_t block, const query_metric& metric) {
    const std::int64_t first = block * shape_.block;
    read(first);
    if (keeps_links(shape_)) link(first);
    pack(first, metric);
    if (of_.codes.data != nullptr) at_.codes.write(shape_, of_, block);
  }

 private:
  std::int64_t pitch() const { return block_key_pitch(dim_); }

  /// The key of a token as row i, with its square norm.
  void load(std::int64_t token, int i) {
    float* const row = at_.rows + i * pitch();
    convert_.to_floats(of_.key(token), dim_, row);
    std::fill(row + dim_, row + pitch(), 0.0f);
    at_.squares[i] = fixed_dot(row, row, dim_);
  }

  /// Rows of the tokens that can be found and are no sinks.
  void read(std::int64_t first) {
    int n = 0;
    for (int t = 0; t < shape_.block; ++t) {
      if (first + t < of_.sink) continue;
      load(first + t, n);
      at_.offsets[n] = t;
      if (can_be_found(at_.squares[n]) && has_value(first + t)) ++n;
    }
    keys_ = {at_.rows, at_.offsets, n, dim_, pitch()};
  }

  bool has_value(std::int64_t token) const {
    return !of_.finite_values || can_be_averaged(square_value(of_.value(token), of_.rows.value_dim));
  }

  void link(std::int64_t first) {
    for (int i = 0; i < keys_.n; ++i) largest_ = std::max(largest_, at_.squares[i]);
    at_.points.set_radius(sphere_radius(at_.points.radius(), largest_, host_links::square_root));
    int most = 0;
    for (int i = 0; i < keys_.n; ++i) {
      const int level = level_of(shape_, first + at_.offsets[i]);
      if (level > 0) at_.points.add(level, static_cast<std::int32_t>(first + at_.offsets[i]), keys_.row(i), at_.squares[i]);
      most = std::max(most, level);
    }
    for (int level = 0; level <= most; ++level) {
      int count = 0;
      for (int i = 0; i < keys_.n; ++i) {
        if (level_of(shape_, first + at_.offsets[i]) == level) at_.level[count++] = i;
      }
      at_.points.link(level, keys_, at_.squares, at_.level, count, at_.parents);
    }
    const std::int64_t P = of_.rows.page_tokens;
    for (std::int64_t page = first / P; page < (first + shape_.block) / P; ++page) {
      std::fill_n(of_.links_of(page), P, not_in_tree);
      of_.packed(shape_, page).radius() = at_.points.radius();
    }
    for (int i = 0; i < keys_.n; ++i) {
      const std::int64_t t = first + at_.offsets[i];
      of_.links_of(t / P)[t % P] = at_.parents[i];
    }
    place(first);
  }

  /// Where the tokens of the tree stand on the lines of the composite indices.
  void place(std::int64_t first) {
    const std::int64_t P = of_.rows.page_tokens;
    const int lines = lines_of(shape_);
    if (lines == 0) return;
    for (std::int64_t page = first / P; page < (first + shape_.block) / P; ++page)
      std::fill_n(of_.places_of(page, 0, lines), P * lines, quiet_nan);
    for (int i = 0; i < keys_.n; ++i) {
      const std::int64_t t = first + at_.offsets[i];
      const float radius = at_.points.radius(), height = sphere_height(radius, at_.squares[i], host_links::square_root);
      float* const places = of_.places_of(t / P, t % P, lines);
      for (int j = 0; j < lines; ++j)
        places[j] =
            place_of_key(fixed_dot(keys_.row(i), at_.lines + j * pitch(), dim_), height, line_component(shape_.seed, j, dim_), radius);
    }
  }

  void pack(std::int64_t first, const query_metric& metric) {
    const int P = of_.rows.page_tokens, pages = shape_.block / P;
    const auto sink_pages = static_cast<int>(std::clamp<std::int64_t>(of_.sink - first, 0, shape_.block) / P);
    asked_ = ask_block(keys_, metric, at_.packing);
    pack_block(shape_, keys_, asked_.rows, at_.parents, P, at_.packing, at_.order);
    for (int j = 0; j < sink_pages; ++j) {
      for (int i = 0; i < P; ++i) put(first, j, i, j * P + i);
      close(first, j, nullptr, 0);
    }
    const auto filled = static_cast<int>(ceil_div(keys_.n, P));
    for (int j = 0; j < filled; ++j) {
      std::int32_t* const begin = at_.order + j * P;
      std::sort(begin, at_.order + std::min((j + 1) * P, keys_.n));
      at_.page_of[j] = j;
    }
    std::sort(at_.page_of, at_.page_of + filled, [&](std::int32_t a, std::int32_t b) { return at_.order[a * P] < at_.order[b * P]; });
    for (int j = 0; j < filled; ++j) {
      const int from = at_.page_of[j] * P, end = std::min(from + P, keys_.n);
      for (int i = from; i < end; ++i) put(first, sink_pages + j, i - from, at_.offsets[at_.order[i]]);
      close(first, sink_pages + j, at_.order + from, end - from);
    }
    for (int j = sink_pages + filled; j < pages; ++j) close(first, j, nullptr, 0);
    place_lost(first, sink_pages);
    if (keeps_block_means(shape_)) {
      std::iota(at_.order, at_.order + keys_.n, 0);
      average(keys_, at_.order, keys_.n, at_.mean);
      round_mean(mean_of(first, 0) + dim_);
      for (int j = 1; j < pages; ++j) std::fill_n(mean_of(first, j) + dim_, dim_, bf16{});
    }
  }

  /// The tokens that are never found, ascending, where pages have room.
  void place_lost(std::int64_t first, int sink_pages) {
    const int P = of_.rows.page_tokens;
    int j = sink_pages - 1, slot = P, next = 0;
    for (int offset = 0; offset < shape_.block; ++offset) {
      if (next < keys_.n && at_.offsets[next] == offset) {
        ++next;
        continue;
      }
      if (first + offset < of_.sink) continue;
      while (slot == P) slot = page(first, ++j).count();
      put(first, j, slot++, offset);
    }
  }

  packed_page page(std::int64_t first, int j) const { return of_.packed(shape_, first / of_.rows.page_tokens + j); }
  void put(std::int64_t first, int j, int i, int offset) const {
    page(first, j).set_member(i, offset);
    page(first, offset / of_.rows.page_tokens).set_place(offset % of_.rows.page_tokens, j);
  }

  /// Page j is complete: its count, the mean of its members and their spread.   rows (count)
  void close(std::int64_t first, int j, const std::int32_t* rows, int count) {
    const packed_page p = page(first, j);
    p.count() = count;
    p.spread() = 0;
    if (!keeps_links(shape_)) p.radius() = 0;
    if (of_.means.data == nullptr) return;
    average(keys_, rows, count, at_.mean);
    round_mean(mean_of(first, j));
    average(asked_.rows, rows, count, at_.asked_mean);
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      const float *const x = keys_.row(rows[i]), *const z = asked_.rows.row(rows[i]);
      for (std::int64_t d = 0; d < pitch(); ++d) {
        at_.from_mean[d] = x[d] - at_.mean[d];
        at_.asked_from_mean[d] = z[d] - at_.asked_mean[d];
      }
      sum += fixed_dot(at_.from_mean, at_.asked_from_mean, dim_);
    }
    if (sum > 0) p.spread() = static_cast<float>(host_links::square_root(sum / (count * asked_.trace)));
  }

  bf16* mean_of(std::int64_t first, int j) const { return of_.mean_of(first / of_.rows.page_tokens + j); }

  /// The mean of some rows, summed in double, ascending; zero of none.   mean (pitch)
  void average(const block_keys& of, const std::int32_t* rows, int count, float* mean) {
    double* const sums = at_.packing.sums;
    std::fill_n(sums, pitch(), 0.0);
    for (int i = 0; i < count; ++i) {
      const float* const row = of.row(rows[i]);
      for (std::int64_t d = 0; d < pitch(); ++d) sums[d] += static_cast<double>(row[d]);
    }
    for (std::int64_t d = 0; d < pitch(); ++d) mean[d] = count == 0 ? 0.0f : static_cast<float>(sums[d] / count);
  }

  void round_mean(bf16* to) const {
    for (int d = 0; d < dim_; ++d) to[d] = round_to<bf16>(at_.mean[d]);
  }

  const dci_shape& shape_;
  const dci_head<E>& of_;
  indexing_parts at_;
  const simd::row_conversions<E>& convert_;
  int dim_;
  double largest_ = 0;
  block_keys keys_;
  asked_keys asked_;
};

}  // namespace host_dci

/// Bytes of scratch that index_blocks needs for a head whose last block ends at `tokens`, at an address that is a multiple of 64.
inline std::int64_t index_blocks_bytes(const dci_shape& shape, int page_tokens, int dim, std::int64_t tokens) {
  scratch_parts s;
  host_dci::indexing_parts(s, shape, page_tokens, dim, promoted_counts(shape, 0, keeps_links(shape) ? tokens : 0));
  return s.used;
}

/// Fills the columns of blocks [first, first + count) of one head, on the caller's thread. It throws nothing once it has begun.
///
/// what        links, then pages, then means: a pure function of the rows up to the end of each block and of its metric, in whatever
///             pieces the blocks are indexed
/// shapes      metrics (count), one a block, or empty: keys as they are; scratch of index_blocks_bytes bytes
/// cost        a product of each token with the promoted ones before it, 2 D N^2 p0 / 2 in all; packing: see pack_block; a call reads the
///             promoted keys of all earlier blocks once
/// exactness   the same columns for every instruction set and compiler
/// errors      usage_error: a shape that does not fit the page, sinks that are no whole pages, scratch that is too small or not aligned
template <element E>
void index_blocks(const host&, const dci_shape& shape, const dci_head<E>& of, std::int64_t first, std::int64_t count,
                  std::span<const query_metric> metrics, std::span<std::byte> scratch, call_site where = call_site::here()) {
  const int P = of.rows.page_tokens, D = of.rows.key_dim;
  require(is_valid(shape, P), "index_blocks: the block must be whole pages, at most 65,536 tokens", where);
  require_range("index_blocks: key_dim", D, 1, simd::long_key_pitch, where);
  require(of.sink % P == 0, "index_blocks: sinks must be whole pages", where);
  require_range("index_blocks: first block", first, 0, INT32_MAX / shape.block, where);
  require_range("index_blocks: blocks", count, 0, INT32_MAX / shape.block - first, where);
  require(metrics.empty() || static_cast<std::int64_t>(metrics.size()) == count, "index_blocks: metrics must be one a block, or none",
          where);
  const auto counts = promoted_counts(shape, 0, keeps_links(shape) ? (first + count) * shape.block : 0);
  scratch_parts needed;
  host_dci::indexing_parts(needed, shape, P, D, counts);
  require(static_cast<std::int64_t>(scratch.size()) >= needed.used && reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 == 0,
          "index_blocks: scratch is smaller than index_blocks_bytes, or not aligned to 64 bytes", where);
  scratch_parts memory{scratch.data()};
  host_dci::indexer<E> indexer(shape, of, host_dci::indexing_parts(memory, shape, P, D, counts));
  indexer.resume(first);
  for (std::int64_t b = 0; b < count; ++b)
    indexer.index(first + b, metrics.empty() ? query_metric{} : metrics[static_cast<std::size_t>(b)]);
}

}  // namespace kvx
