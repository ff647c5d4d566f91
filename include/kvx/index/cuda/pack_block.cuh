#pragma once
// Packing one block of tokens into semantic pages on the device, by one block of threads.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/bisection.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/dci_tree.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace kvx {

/// Tokens of a block at most where a device packs it: what is known of each lies in shared memory.
inline constexpr int most_packed_tokens = 1024;

/// Threads of a block that packs.
inline constexpr int packing_threads = 256;

/// What packing needs in dynamic shared memory. Rows are those that can be found, ascending.
template <class E>
struct packing_shared {
  const E** keys;          // (block) of row i
  std::int32_t* offsets;   // (block) token of row i, counted from the start of the block
  std::int32_t* order;     // (block) rows, page after page
  std::int32_t* flags;     // (block)
  std::int32_t* next;      // (block)
  double* values;          // (block) of the row at each place of the order
  float* steps;            // (block)
  double* sums;            // (D)
  float* direction;        // (D)
  float* metric;           // (D)
  float* mean;             // (D)
  float* asked_mean;       // (D)

  KVX_HD packing_shared(scratch_parts& s, int block, int dim)
      : keys(s.take<const E*>(block)),
        offsets(s.take<std::int32_t>(block)),
        order(s.take<std::int32_t>(block)),
        flags(s.take<std::int32_t>(block)),
        next(s.take<std::int32_t>(block)),
        values(s.take<double>(block)),
        steps(s.take<float>(block)),
        sums(s.take<double>(dim)),
        direction(s.take<float>(dim)),
        metric(s.take<float>(dim)),
        mean(s.take<float>(dim)),
        asked_mean(s.take<float>(dim)) {}
};

/// The rows of a block, and the same in its query metric M: see asked_keys.
///
/// factor, trace   of M scaled; 1 and D without a metric
template <class E>
struct packed_rows {
  const E* const* keys = nullptr;  // (n)
  const float* metric = nullptr;   // (D), or null: keys as they are
  double factor = 1;
  double trace = 0;
  int n = 0;
  int dim = 0;

  __device__ __forceinline__ float key(int row, int d) const { return to_float(keys[row][d]); }
  __device__ __forceinline__ float asked(float x, int d) const { return metric != nullptr ? asked_component(metric[d], x, factor) : x; }
};

/// One packing of one block. All threads call, and all see what it leaves in shared memory.
template <int Threads, class E>
class block_packer {
 public:
  __device__ block_packer(const dci_shape& shape, const packed_rows<E>& rows, int page_tokens, const packing_shared<E>& shared,
                          block_scratch<double, Threads>& reduction)
      : shape_(shape), rows_(rows), s_(shared), reduction_(reduction), P_(page_tokens) {}

  /// order becomes the rows of page 0, ascending, of page 1, ... For packing::projection, next holds the parents of the rows.
  __device__ void pack() {
    for (int i = tid(); i < rows_.n; i += Threads) s_.order[i] = i;
    __syncthreads();
    if (shape_.pack == dci_shape::packing::bisection) bisect();
    if (shape_.pack == dci_shape::packing::greedy) gather_nearest();
    if (shape_.pack == dci_shape::packing::projection) cut_cells();
  }

 private:
  __device__ static int tid() { return static_cast<int>(threadIdx.x); }

  __device__ void bisect() {
    const int pages = static_cast<int>(ceil_div(rows_.n, P_));
    for (int depth = 0; (pages - 1) >> depth > 0; ++depth) {
      for (int k = 0; k < 1 << depth; ++k) {
        const page_range node = node_of(pages, depth, k);
        if (node.count < 2) continue;
        const int end = (node.first + node.count) * P_;
        halve(node.first * P_, (node.first + lower_pages(node.count)) * P_, end < rows_.n ? end : rows_.n);
      }
    }
  }

  /// Cuts a node along its principal direction, see bisection.hpp.
  __device__ void halve(int first, int middle, int end) {
    __shared__ double mean;
    const int D = rows_.dim;
    for (int d = tid(); d < D; d += Threads) s_.direction[d] = first_direction(shape_.seed, d);
    __syncthreads();
    for (int step = 0; step < power_steps; ++step) {
      project(first, end);
      if (tid() == 0) {
        double sum = 0;
        for (int i = first; i < end; ++i) sum += s_.values[i];
        mean = sum / (end - first);
      }
      __syncthreads();
      for (int i = first + tid(); i < end; i += Threads) s_.steps[i] = static_cast<float>(s_.values[i] - mean);
      __syncthreads();
      double largest = 0;
      for (int d = tid(); d < D; d += Threads) {
        double sum = 0;
        for (int i = first; i < end; ++i)
          sum += static_cast<double>(rows_.asked(rows_.key(s_.order[i], d), d)) * static_cast<double>(s_.steps[i]);
        s_.sums[d] = sum;
        const double size = sum < 0 ? -sum : sum;
        if (size > largest) largest = size;
      }
      largest = block_reduce<Threads>(
          largest, [](double a, double b) { return a < b ? b : a; }, reduction_);
      const double factor = power_to_one(largest);
      for (int d = tid(); d < D; d += Threads) s_.direction[d] = static_cast<float>(s_.sums[d] * factor);
      __syncthreads();
    }
    project(first, end);
    split(first, middle, end);
  }

  /// Page after page: the first row that is left, and those nearest to it.
  __device__ void gather_nearest() {
    const int D = rows_.dim;
    for (int first = 0; first + P_ < rows_.n; first += P_) {
      const int seed = s_.order[first];
      for_each_row(first, rows_.n, [&](int row) {
        const auto x = [&](int d) { return rows_.key(row, d); };
        const double own = fixed_dot_of_lanes(
            x, [&](int d) { return rows_.asked(x(d), d); }, D);
        return own - 2 * fixed_dot_of_lanes(
                             x, [&](int d) { return rows_.asked(rows_.key(seed, d), d); }, D);
      });
      split(first + 1, first + P_, rows_.n);
    }
  }

  /// Cell after cell, by the value along one random direction inside of a cell; then every page by itself.
  __device__ void cut_cells() {
    const int D = rows_.dim, n = rows_.n;
    for (int d = tid(); d < D; d += Threads) s_.direction[d] = first_direction(shape_.seed, d);
    __syncthreads();
    for_each_row(0, n, [&](int row) {
      return fixed_dot_of_lanes([&](int d) { return rows_.asked(rows_.key(row, d), d); }, [&](int d) { return s_.direction[d]; }, D);
    });
    for (int i = tid(); i < n; i += Threads) {
      const std::int32_t parent = s_.next[i];
      const double value = s_.values[i];
      int rank = 0;
      for (int j = 0; j < n; ++j) {
        if (s_.next[j] != parent) {
          rank += s_.next[j] < parent ? 1 : 0;
        } else {
          rank += s_.values[j] < value || (value == s_.values[j] && j < i) ? 1 : 0;
        }
      }
      s_.flags[i] = rank / P_;
    }
    __syncthreads();
    for (int i = tid(); i < n; i += Threads) {
      int place = s_.flags[i] * P_;
      for (int j = 0; j < i; ++j) place += s_.flags[j] == s_.flags[i] ? 1 : 0;
      s_.order[place] = i;
    }
    __syncthreads();
  }

  __device__ void project(int first, int end) {
    for_each_row(first, end, [&](int row) {
      return fixed_dot_of_lanes([&](int d) { return rows_.key(row, d); }, [&](int d) { return s_.direction[d]; }, rows_.dim);
    });
  }

  /// values of places [first, end): value_of(row), computed by eight lanes.
  template <class ValueOf>
  __device__ void for_each_row(int first, int end, const ValueOf& value_of) {
    for (int turn = first; turn < end; turn += Threads / fixed_dot_lanes) {
      const int place = turn + tid() / fixed_dot_lanes;
      const double value = value_of(s_.order[place < end ? place : end - 1]);
      if (place < end && tid() % fixed_dot_lanes == 0) s_.values[place] = value;
    }
    __syncthreads();
  }

  /// Puts the rows of the smallest values before `middle`, equal ones by position; both parts stay ascending.
  __device__ void split(int first, int middle, int end) {
    for (int i = first + tid(); i < end; i += Threads) {
      const double value = s_.values[i];
      int rank = 0;
      for (int j = first; j < end; ++j) rank += s_.values[j] < value || (s_.values[j] == value && j < i) ? 1 : 0;
      s_.flags[i] = rank < middle - first ? 1 : 0;
    }
    __syncthreads();
    for (int i = first + tid(); i < end; i += Threads) {
      int lower = 0;
      for (int j = first; j < i; ++j) lower += s_.flags[j];
      s_.next[s_.flags[i] != 0 ? first + lower : middle + (i - first - lower)] = s_.order[i];
    }
    __syncthreads();
    for (int i = first + tid(); i < end; i += Threads) s_.order[i] = s_.next[i];
    __syncthreads();
  }

  const dci_shape& shape_;
  const packed_rows<E>& rows_;
  const packing_shared<E>& s_;
  block_scratch<double, Threads>& reduction_;
  int P_;
};

}  // namespace kvx
