#pragma once
// Parents of the tokens of a tree on the host: blocked products of panels propose, sums in double decide.

#include <kvx/backend/simd/dispatch.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace kvx {

namespace host_links {

inline double square_root(double x) { return std::sqrt(x); }

/// Points that one call of the kernel takes, and rows of a panel at most.
inline constexpr int points_per_call = simd::block_tokens, most_width = 48;

/// The tokens of one level, by position.
///
/// shapes      rows (capacity, key_pitch), zero behind D and behind `count`; heights, squares, positions (capacity)
struct level_points {
  float* rows = nullptr;
  float* heights = nullptr;
  double* squares = nullptr;
  std::int32_t* positions = nullptr;
  std::int64_t count = 0;
};

/// The point that is nearest to a token, as far as floats can tell.
struct contenders {
  static constexpr int most = 16;
  float values[most];
  std::int32_t points[most];
  int count = 0;
  bool overflow = false;

  /// Takes a point that reaches best - gap. Returns the new limit.
  float add(float value, std::int32_t point, float limit, float gap) {
    if (value - gap > limit) {
      limit = value - gap;
      int kept = 0;
      for (int i = 0; i < count; ++i) {
        if (values[i] < limit) continue;
        values[kept] = values[i];
        points[kept++] = points[i];
      }
      count = kept;
    }
    if (count == most) {
      overflow = true;
      return limit;
    }
    values[count] = value;
    points[count++] = point;
    return limit;
  }
};

}  // namespace host_links

/// All promoted tokens of one head, level by level, and room for the panels that look for the nearest of them.
class promoted_points {
 public:
  /// shapes      counts: tokens of each level that may be added, see promoted_counts
  promoted_points(scratch_parts& s, const std::array<std::int64_t, most_dci_level + 1>& counts, int dim) : dim_(dim) {
    const std::int64_t pitch = simd::key_pitch(dim);
    for (std::size_t level = 1; level < counts.size(); ++level) {
      host_links::level_points& points = levels_[level];
      const std::int64_t capacity = round_up(counts[level], host_links::points_per_call);
      points.rows = s.take<float>(capacity * pitch);
      points.heights = s.take<float>(capacity);
      points.squares = s.take<double>(capacity);
      points.positions = s.take<std::int32_t>(capacity);
    }
    panel_ = s.take<float>(dim * host_links::most_width);
    scores_ = s.take<float>(host_links::points_per_call * host_links::most_width);
  }

  float radius() const { return radius_; }

  /// Puts all points on a sphere of this radius.
  void set_radius(float radius) {
    if (radius == radius_) return;
    radius_ = radius;
    for (host_links::level_points& points : levels_) {
      for (std::int64_t i = 0; i < points.count; ++i) points.heights[i] = sphere_height(radius, points.squares[i], host_links::square_root);
    }
  }

  /// Adds the token at `position`, which lies behind all others of its level. Its norm may not exceed the radius.
  void add(int level, std::int32_t position, const float* key, double square) {
    host_links::level_points& points = levels_[static_cast<std::size_t>(level)];
    const std::int64_t pitch = simd::key_pitch(dim_), i = points.count++;
    if (i % host_links::points_per_call == 0) std::fill_n(points.rows + i * pitch, host_links::points_per_call * pitch, 0.0f);
    std::copy(key, key + dim_, points.rows + i * pitch);
    points.squares[i] = square;
    points.heights[i] = sphere_height(radius_, square, host_links::square_root);
    points.positions[i] = position;
  }

  /// Parents of some tokens of one level.
  ///
  /// shapes      tokens (count), rows of `keys`; squares (rows of keys); parents (rows of keys): those of `tokens` are written
  void link(int level, const block_keys& keys, const double* squares, const std::int32_t* tokens, int count, std::int32_t* parents) {
    const bool top = level == most_dci_level || levels_[static_cast<std::size_t>(level) + 1].count == 0;
    if (top) {
      for (int i = 0; i < count; ++i) parents[tokens[i]] = no_parent;
      return;
    }
    const simd::kernel_table& kernels = simd::kernels();
    const simd::panel_kernels& kernel = kernels.panels(dim_);
    for (int first = 0; first < count; first += kernel.width) {
      link_panel(kernel, levels_[static_cast<std::size_t>(level) + 1], keys, squares, tokens + first, std::min(kernel.width, count - first),
                 parents);
    }
  }

 private:
  void link_panel(const simd::panel_kernels& kernel, const host_links::level_points& points, const block_keys& keys, const double* squares,
                  const std::int32_t* tokens, int count, std::int32_t* parents) {
    const int W = kernel.width;
    float heights[host_links::most_width] = {}, limits[host_links::most_width], values[host_links::most_width];
    host_links::contenders found[host_links::most_width];
    std::fill_n(panel_, dim_ * W, 0.0f);
    std::fill_n(limits, W, infinity);  // columns that are no token
    for (int w = 0; w < count; ++w) {
      const float* const key = keys.row(tokens[w]);
      for (int d = 0; d < dim_; ++d) panel_[d * W + w] = key[d];
      heights[w] = sphere_height(radius_, squares[tokens[w]], host_links::square_root);
      limits[w] = -infinity;
    }
    const float gap = nearest_gap(radius_, dim_);
    const std::int64_t pitch = simd::key_pitch(dim_);
    for (std::int64_t first = 0; first < points.count; first += host_links::points_per_call) {
      const auto n = static_cast<int>(std::min<std::int64_t>(host_links::points_per_call, points.count - first));
      kernel.scores(points.rows + first * pitch, static_cast<int>(round_up(n, simd::column_step)), dim_, panel_, scores_);
      for (int i = 0; i < n; ++i) {
        const float height = points.heights[first + i];
        const float* const row = scores_ + i * W;
        int reaching = 0;
        for (int w = 0; w < W; ++w) {
          values[w] = row[w] + height * heights[w];
          reaching += values[w] >= limits[w] ? 1 : 0;
        }
        if (reaching == 0) continue;
        for (int w = 0; w < W; ++w) {
          if (values[w] >= limits[w]) limits[w] = found[w].add(values[w], static_cast<std::int32_t>(first + i), limits[w], gap);
        }
      }
    }
    for (int w = 0; w < count; ++w) parents[tokens[w]] = points.positions[decide(points, found[w], keys.row(tokens[w]), heights[w])];
  }

  /// The nearest of those that floats cannot tell apart; of all where there are too many of them.
  std::int64_t decide(const host_links::level_points& points, const host_links::contenders& among, const float* key, float height) const {
    if (among.count == 1 && !among.overflow) return among.points[0];
    const std::int64_t pitch = simd::key_pitch(dim_);
    const auto product = [&](std::int64_t i) { return sphere_product(key, height, points.rows + i * pitch, points.heights[i], dim_); };
    const std::int64_t count = among.overflow ? points.count : among.count;
    std::int64_t best = 0;
    double most = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t i = among.overflow ? j : among.points[j];
      const double value = product(i);
      if (j > 0 && !(value > most)) continue;
      best = i;
      most = value;
    }
    return best;
  }

  int dim_;
  float radius_ = 0;
  std::array<host_links::level_points, most_dci_level + 1> levels_;
  float* panel_;   // (D, W)
  float* scores_;  // (points_per_call, W)
};

/// Tokens of each level among positions [begin, end).
inline std::array<std::int64_t, most_dci_level + 1> promoted_counts(const dci_shape& shape, std::int64_t begin, std::int64_t end) {
  std::array<std::int64_t, most_dci_level + 1> counts{};
  for (std::int64_t t = begin; t < end; ++t) ++counts[static_cast<std::size_t>(level_of(shape, t))];
  return counts;
}

}  // namespace kvx
