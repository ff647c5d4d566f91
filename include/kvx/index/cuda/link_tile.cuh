#pragma once
// Parents of 64 tokens of a block, by one block of threads.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/double_root.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/backend/cuda/mma.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/math.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/cuda/link_call.cuh>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/promoted_tokens.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// Tokens of a tile, promoted tokens that are read at once, threads of a block: a warp for 16 tokens.
inline constexpr int link_tokens = 64, link_points = 32, link_threads = 2 * link_tokens;

/// How far apart two estimates of a product must be for their order to be right: tensor cores may truncate every addition and make a few
/// more of them, for which four times what nearest_gap allows is ample; and what is too small for a float is lost.
KVX_HD constexpr float tensor_gap(float radius, int dim) { return 4 * nearest_gap(radius, dim) + 0x1p-100f; }

/// One tile. All threads call.
template <int Threads, class E>
class tile_linker {
 public:
  static_assert(Threads / warp_lanes * 16 == link_tokens);

  /// Whether tensor cores multiply keys without rounding; else all products are those of fixed_dot.
  static constexpr bool proposes = mma_operand<E>;

  struct scratch {
    float radius;
    float heights[link_tokens];
    int levels[link_tokens];            ///< -1: not in the tree, or no token
    double best[link_tokens];
    std::int32_t parents[link_tokens];
    float point_heights[link_points];   ///< NaN: not in the tree, or no token
  };

  /// Of the keys of tokens and promoted tokens.
  static constexpr std::int64_t shared_bytes(int dim) {
    return proposes ? std::int64_t{link_tokens + link_points} * pitch_of(dim) * static_cast<std::int64_t>(sizeof(E)) : 0;
  }

  __device__ tile_linker(const link_call<E>& call, std::int64_t index, std::int64_t head, int tile, scratch& s, std::byte* shared)
      : call_(call),
        s_(s),
        of_(call.blocks[index]),
        index_(index),
        head_(head),
        first_(tile * link_tokens),
        keys_(reinterpret_cast<E*>(shared)),
        points_(keys_ + link_tokens * pitch_of(call.rows.key_dim)) {}

  __device__ void link() {
    if (tid() == 0) s_.radius = radius();
    __syncthreads();
    look_at_tokens();
    if constexpr (proposes) {
      stage(keys_, link_tokens, [&](int i) { return s_.levels[i] >= 0 ? key(token(i)) : nullptr; });
      link_lowest();
    }
    link_promoted();
    __syncthreads();
    for (int i = tid(); i < link_tokens; i += Threads) {
      if (s_.levels[i] >= 0) call_.link(of_.pages, head_, token(i)) = s_.parents[i];
    }
    if (first_ > 0) return;
    const int P = call_.rows.page_tokens;
    for (std::int64_t j = tid(); j < call_.shape.block / P; j += Threads) packed(block_first() / P + j).radius() = s_.radius;
  }

 private:
  __device__ static int tid() { return static_cast<int>(threadIdx.x); }
  KVX_HD static constexpr int depth_of(int dim) { return (dim + 31) / 32 * 32; }
  KVX_HD static constexpr int pitch_of(int dim) { return depth_of(dim) + 8; }

  __device__ int dim() const { return call_.rows.key_dim; }
  __device__ std::int64_t block_first() const { return of_.block * call_.shape.block; }
  __device__ std::int64_t end() const { return block_first() + call_.shape.block; }
  __device__ std::int64_t token(int i) const { return block_first() + first_ + i; }
  __device__ const E* key(std::int64_t t) const { return call_.key(of_.pages, head_, t); }
  __device__ packed_page packed(std::int64_t page) const {
    return {call_.members.at(of_.pages[page], head_), call_.rows.page_tokens, packed_page::entry_bytes(call_.shape)};
  }

  /// Of the block's sphere, from those of all blocks before it.
  __device__ float radius() const {
    const std::int64_t first = of_.block - of_.before;
    float result = first > 0 ? packed(first * call_.shape.block / call_.rows.page_tokens - 1).radius() : 0.0f;
    for (std::int64_t i = index_ - of_.before; i <= index_; ++i)
      result = sphere_radius(result, call_.to.largest[i * call_.rows.heads + head_], double_root{});
    return result;
  }

  /// Square norms of the promoted tokens, in the order of their positions.
  __device__ const double* squares() const {
    return call_.to.squares + (std::int64_t{of_.run} * call_.rows.heads + head_) * call_.promoted.count();
  }

  /// Heights and levels of the tile's tokens.
  __device__ void look_at_tokens() {
    for (int turn = 0; turn < link_tokens; turn += Threads / fixed_dot_lanes) {
      const int i = turn + tid() / fixed_dot_lanes;
      const bool here = token(i) < end();
      const double square = square_in_tree(call_, of_.pages, head_, here ? token(i) : block_first());
      if (tid() % fixed_dot_lanes != 0) continue;
      const bool in_tree = here && square >= 0;
      s_.levels[i] = in_tree ? level_of(call_.shape, token(i)) : -1;
      s_.heights[i] = in_tree ? sphere_height(s_.radius, square, double_root{}) : 0.0f;
      s_.parents[i] = no_parent;
      s_.best[i] = 0;
    }
    __syncthreads();
  }

  /// Rows of keys in shared memory, 0 behind D and where there is none.   to (count, pitch)
  template <class RowOf>
  __device__ void stage(E* to, int count, const RowOf& row_of) const {
    const int parts = depth_of(dim()) / 8;
    for (int i = tid(); i < count * parts; i += Threads) {
      const E* const row = row_of(i / parts);
      const int d = i % parts * 8;
      auto* const part = reinterpret_cast<uint4*>(to + i / parts * pitch_of(dim()) + d);
      if (row != nullptr && call_.wide && d + 8 <= dim()) {
        *part = *reinterpret_cast<const uint4*>(row + d);
        continue;
      }
      unsigned words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = row != nullptr && d + 2 * w < dim() ? row[d + 2 * w].bits : 0u;
        words[w] |= row != nullptr && d + 2 * w + 1 < dim() ? static_cast<unsigned>(row[d + 2 * w + 1].bits) << 16 : 0u;
      }
      *part = {words[0], words[1], words[2], words[3]};
    }
  }

  /// Parents of the tokens of level 0. Estimates of all products are made twice: for the largest of each token, then those that reach it
  /// but for the gap are computed as they are meant.
  __device__ void link_lowest() {
    const std::int64_t count = call_.promoted.before(1, end());
    const std::int32_t* const points = call_.promoted.of(1);
    const double* const of_points = squares() + call_.promoted.first[1];
    const int row = warp_of_thread() * 16 + lane_of_thread() / 4;  // and row + 8
    const float heights[2] = {s_.heights[row], s_.heights[row + 8]};
    float limits[2] = {-infinity, -infinity};
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t first = 0; first < count; first += link_points) {
        __syncthreads();
        const int here = static_cast<int>(count - first < link_points ? count - first : link_points);
        for (int i = tid(); i < link_points; i += Threads) {
          const double square = i < here ? of_points[first + i] : -1;
          s_.point_heights[i] = square < 0 ? quiet_nan : sphere_height(s_.radius, square, double_root{});
        }
        stage(points_, link_points, [&](int i) { return i < here ? key(points[first + i]) : nullptr; });
        __syncthreads();
        float values[link_points / 8][4];
        estimate(heights, values);
#pragma unroll
        for (int j = 0; j < link_points / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (pass == 0) {
              if (values[j][e] > limits[e / 2]) limits[e / 2] = values[j][e];
              continue;
            }
            unsigned reaching = __ballot_sync(all_lanes, values[j][e] >= limits[e / 2]);
            for (; reaching != 0; reaching &= reaching - 1) {
              const int lane = __ffs(static_cast<int>(reaching)) - 1;
              decide(warp_of_thread() * 16 + lane / 4 + e / 2 * 8, j * 8 + lane % 4 * 2 + e % 2, points + first);
            }
          }
        }
      }
      if (pass > 0) break;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float most = warp_max<4>(limits[r]);
        limits[r] = s_.levels[row + 8 * r] == 0 ? most - tensor_gap(s_.radius, dim()) : infinity;
      }
    }
  }

  /// Estimates of 16 tokens with the promoted ones that are there; NaN where there is none.
  __device__ void estimate(const float (&heights)[2], float (&values)[link_points / 8][4]) const {
    const int lane = lane_of_thread(), pitch = pitch_of(dim());
    const E* const own = keys_ + (warp_of_thread() * 16 + lane % 16) * pitch + lane / 16 * 8;
    const E* const other = points_ + lane % 8 * pitch + lane / 8 * 8;
#pragma unroll
    for (int j = 0; j < link_points / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[j][e] = 0;
    }
#pragma unroll 1
    for (int d = 0; d < depth_of(dim()); d += 32) {
      unsigned a[2][4];
      load_matrices(a[0], own + d);
      load_matrices(a[1], own + d + 16);
#pragma unroll
      for (int j = 0; j < link_points / 8; ++j) {
        unsigned b[4];
        load_matrices(b, other + j * 8 * pitch + d);
        mma<E>(values[j], a[0], b[0], b[1]);
        mma<E>(values[j], a[1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < link_points / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) values[j][e] += heights[e / 2] * s_.point_heights[j * 8 + lane % 4 * 2 + e % 2];
    }
  }

  /// Compares token i of the tile with a promoted one that is staged, by one warp.
  __device__ void decide(int i, int point, const std::int32_t* points) const {
    const int pitch = pitch_of(dim());
    const double dot = fixed_dot_of_lanes([&](int d) { return to_float(keys_[i * pitch + d]); },
                                          [&](int d) { return to_float(points_[point * pitch + d]); }, dim());
    const double value = dot + static_cast<double>(s_.heights[i]) * static_cast<double>(s_.point_heights[point]);
    if (lane_of_thread() == 0 && is_nearer(value, points[point], s_.best[i], s_.parents[i])) {
      s_.best[i] = value;
      s_.parents[i] = points[point];
    }
  }

  __device__ static bool is_nearer(double value, std::int32_t position, double than, std::int32_t of) {
    return of < 0 || value > than || (value == than && position < of);
  }

  /// Parents of the tokens whose products nobody estimates: those of level 1 and more, or all. A warp looks at 16 tokens, four promoted
  /// ones at once.
  __device__ void link_promoted() {
    const int group = lane_of_thread() / fixed_dot_lanes;
    for (int i = warp_of_thread() * 16; i < warp_of_thread() * 16 + 16; ++i) {
      const int level = s_.levels[i];
      if (level < (proposes ? 1 : 0) || level == most_dci_level) continue;
      const std::int64_t count = call_.promoted.before(level + 1, end());
      const std::int32_t* const points = call_.promoted.of(level + 1);
      const double* const of_points = squares() + call_.promoted.first[level + 1];
      const E* const own = key(token(i));
      double best = 0;
      std::int32_t parent = no_parent;
      for (std::int64_t first = 0; first < count; first += warp_lanes / fixed_dot_lanes) {
        const std::int64_t p = first + group < count ? first + group : count - 1;
        const E* const other = key(points[p]);
        const double dot = fixed_dot_of_lanes([&](int d) { return to_float(own[d]); }, [&](int d) { return to_float(other[d]); }, dim());
        if (of_points[p] < 0) continue;
        const float height = sphere_height(s_.radius, of_points[p], double_root{});
        const double value = dot + static_cast<double>(s_.heights[i]) * static_cast<double>(height);
        if (!is_nearer(value, points[p], best, parent)) continue;
        best = value;
        parent = points[p];
      }
#pragma unroll
      for (int step = fixed_dot_lanes; step < warp_lanes; step *= 2) {
        const double value = __shfl_xor_sync(all_lanes, best, step);
        const std::int32_t position = __shfl_xor_sync(all_lanes, parent, step);
        if (position < 0 || !is_nearer(value, position, best, parent)) continue;
        best = value;
        parent = position;
      }
      if (lane_of_thread() == 0) s_.parents[i] = parent;
    }
  }

  const link_call<E>& call_;
  scratch& s_;
  block_to_index of_;
  std::int64_t index_, head_;
  int first_;    // of the tile's tokens in the block
  E* keys_;      // (link_tokens, pitch)
  E* points_;    // (link_points, pitch)
};

}  // namespace kvx
