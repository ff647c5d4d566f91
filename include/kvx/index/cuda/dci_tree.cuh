#pragma once
// The columns of semantic pages on the device: blocks of tokens are packed into pages and averaged, a block of threads each.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/fixed_dot.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/block_keys.hpp>
#include <kvx/index/cuda/block_to_index.cuh>
#include <kvx/index/cuda/pack_block.cuh>
#include <kvx/index/cuda/query_metric.cuh>
#include <kvx/index/dci_links.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/page_values.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/query_energies.hpp>
#include <kvx/transform/rope_pairs.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What the kernel is told.
///
/// energies    null data: keys as they are
/// finite_values   see dci_head
/// links       of the blocks, where a tree is kept: they are there
template <class E>
struct index_call {
  dci_shape shape;
  row_view<const E> rows;
  column_array members;
  column_array means;
  energy_column energies;
  rope_pairs pairs;
  std::int64_t sink = 0;
  bool finite_values = false;
  const block_to_index* blocks = nullptr;
  column_array links;
};

/// Writes the columns of one block of one KV head, by one block of threads.
template <int Threads, class E>
class block_indexer {
 public:
  __device__ block_indexer(const index_call<E>& call, const block_to_index& of, std::int64_t head, const packing_shared<E>& shared)
      : call_(call),
        s_(shared),
        head_(head),
        first_(of.block * call.shape.block),
        pages_(of.pages + (first_ / call.rows.page_tokens - of.first_page)),
        frames_(of.frames != nullptr ? of.frames + (pages_ - of.pages) : pages_) {
    const std::int64_t sinks = call.sink - first_;
    sinks_ = static_cast<int>(sinks < 0 ? 0 : sinks < call.shape.block ? sinks : call.shape.block);
  }

  __device__ void index(const block_to_index& of, seen_samples& samples, block_scratch<int, Threads>& counts,
                        block_scratch<double, Threads>& reduction) {
    read(counts);
    learn(of, samples, reduction);
    if (call_.shape.pack == dci_shape::packing::projection) read_parents();
    block_packer<Threads, E>(call_.shape, rows_, P(), s_, reduction).pack();
    place_members();
    place_lost();
    close_pages();
    if (keeps_block_means(call_.shape)) {
      for (int d = tid(); d < rows_.dim; d += Threads) {
        mean_of(0)[rows_.dim + d] = round_to<bf16>(mean(rows_.n, [&](int i) { return rows_.key(i, d); }));
        for (int j = 1; j < call_.shape.block / P(); ++j) mean_of(j)[rows_.dim + d] = bf16{};
      }
    }
  }

 private:
  __device__ static int tid() { return static_cast<int>(threadIdx.x); }
  __device__ int P() const { return call_.rows.page_tokens; }
  __device__ int sink_pages() const { return sinks_ / P(); }
  __device__ int filled() const { return (rows_.n + P() - 1) / P(); }
  __device__ const E* key_of(int offset) const { return call_.rows.key.at(frames_[offset / P()], head_, offset % P()); }
  __device__ bool has_value(int offset) const {
    return !call_.finite_values ||
           can_be_averaged(square_value(call_.rows.value.at(frames_[offset / P()], head_, offset % P()), call_.rows.value_dim));
  }

  __device__ packed_page page(int j) const { return {call_.members.at(pages_[j], head_), P(), packed_page::entry_bytes(call_.shape)}; }
  __device__ bf16* mean_of(int j) const { return reinterpret_cast<bf16*>(call_.means.at(pages_[j], head_)); }

  /// The rows that can be found and are no sinks.
  __device__ void read(block_scratch<int, Threads>& counts) {
    const int D = call_.rows.key_dim, block = call_.shape.block;
    for (int turn = 0; turn < block; turn += Threads / fixed_dot_lanes) {
      const int t = turn + tid() / fixed_dot_lanes;
      const E* const row = key_of(t < block ? t : block - 1);
      const auto x = [&](int d) { return to_float(row[d]); };
      const double square = fixed_dot_of_lanes(x, x, D);
      if (t < block && tid() % fixed_dot_lanes == 0) s_.flags[t] = t >= sinks_ && can_be_found(square) ? 1 : 0;
    }
    __syncthreads();
    int n = 0;
    for (int turn = 0; turn < block; turn += Threads) {
      const int t = turn + tid(), found = t < block && s_.flags[t] != 0 && has_value(t) ? 1 : 0;
      int all = 0;
      const int at = n + block_exclusive_sum<Threads>(found, counts, all);
      if (found != 0) {
        s_.offsets[at] = t;
        s_.keys[at] = key_of(t);
      }
      n += all;
    }
    __syncthreads();
    rows_.keys = s_.keys;
    rows_.n = n;
    rows_.dim = D;
    rows_.trace = D;
  }

  /// next: parents of the rows.
  __device__ void read_parents() const {
    for (int i = tid(); i < rows_.n; i += Threads) {
      const int t = s_.offsets[i];
      s_.next[i] = reinterpret_cast<const std::int32_t*>(call_.links.at(pages_[t / P()], head_))[t % P()];
    }
    __syncthreads();
  }

  /// The metric, from the queries that were seen.
  __device__ void learn(const block_to_index& of, seen_samples& samples, block_scratch<double, Threads>& reduction) {
    __shared__ double trace;
    if (call_.energies.at.data == nullptr) return;
    const std::int64_t end = first_ + call_.shape.block, from = end > metric_tokens ? end - metric_tokens : 0;
    if (mean_energies_of_block<Threads>(call_.energies, of.pages, of.first_page, head_, from, end, call_.pairs, samples, s_.sums,
                                        s_.metric) == 0)
      return;
    double largest = 0;  // as ask_block has it
    for (int d = tid(); d < rows_.dim; d += Threads) {
      if (static_cast<double>(s_.metric[d]) > largest) largest = static_cast<double>(s_.metric[d]);
    }
    largest = block_reduce<Threads>(
        largest, [](double a, double b) { return a < b ? b : a; }, reduction);
    rows_.factor = power_to_one(largest);
    if (tid() == 0) {
      trace = 0;
      for (int d = 0; d < rows_.dim; ++d) trace += static_cast<double>(s_.metric[d]) * rows_.factor;  // exact products
    }
    __syncthreads();
    rows_.metric = s_.metric;
    rows_.trace = trace;
  }

  __device__ void put(int j, int i, int offset) const {
    page(j).set_member(i, offset);
    page(offset / P()).set_place(offset % P(), j);
  }

  /// Pages in the order of their first members; sinks stay where they are. flags: page of the block that filled page j becomes.
  __device__ void place_members() {
    const int pages = filled();
    for (int j = tid(); j < pages; j += Threads) {
      int rank = sink_pages();
      for (int other = 0; other < pages; ++other) rank += s_.order[other * P()] < s_.order[j * P()] ? 1 : 0;
      s_.flags[j] = rank;
    }
    __syncthreads();
    for (int i = tid(); i < rows_.n; i += Threads) put(s_.flags[i / P()], i % P(), s_.offsets[s_.order[i]]);
    for (int t = tid(); t < sinks_; t += Threads) put(t / P(), t % P(), t);
  }

  /// The tokens that are never found, ascending, where pages have room.
  __device__ void place_lost() const {
    const int room = filled() * P() - rows_.n;  // in the page that was filled last
    for (int t = sinks_ + tid(); t < call_.shape.block; t += Threads) {
      int before = 0;  // rows of tokens before t
      for (int step = most_packed_tokens; step > 0; step /= 2) {
        if (before + step <= rows_.n && s_.offsets[before + step - 1] < t) before += step;
      }
      if (before < rows_.n && s_.offsets[before] == t) continue;
      const int lost = t - sinks_ - before;
      if (lost < room) {
        put(s_.flags[filled() - 1], P() - room + lost, t);
      } else {
        put(sink_pages() + filled() + (lost - room) / P(), (lost - room) % P(), t);
      }
    }
  }

  /// Counts, means and spreads.
  __device__ void close_pages() const {
    const int pages = call_.shape.block / P();
    for (int j = tid(); j < pages; j += Threads) {
      if (j >= sink_pages() && j < sink_pages() + filled()) continue;
      page(j).count() = 0;
      page(j).spread() = 0;
      if (!keeps_links(call_.shape)) page(j).radius() = 0;
      for (int d = 0; call_.means.data != nullptr && d < rows_.dim; ++d) mean_of(j)[d] = bf16{};
    }
    for (int j = 0; j < filled(); ++j) {
      const int from = j * P(), count = rows_.n - from < P() ? rows_.n - from : P();
      close(s_.flags[j], from, count);
    }
  }

  /// Page j of the block, whose members are `count` places of the order.
  __device__ void close(int j, int from, int count) const {
    if (call_.means.data != nullptr) {
      bf16* const rounded = mean_of(j);
      for (int d = tid(); d < rows_.dim; d += Threads) {
        s_.mean[d] = mean(count, [&](int i) { return rows_.key(s_.order[from + i], d); });
        s_.asked_mean[d] = mean(count, [&](int i) { return rows_.asked(rows_.key(s_.order[from + i], d), d); });
        rounded[d] = round_to<bf16>(s_.mean[d]);
      }
      __syncthreads();
      for (int turn = 0; turn < count; turn += Threads / fixed_dot_lanes) {
        const int i = turn + tid() / fixed_dot_lanes, row = s_.order[from + (i < count ? i : 0)];
        const double square = fixed_dot_of_lanes([&](int d) { return rows_.key(row, d) - s_.mean[d]; },
                                                 [&](int d) { return rows_.asked(rows_.key(row, d), d) - s_.asked_mean[d]; }, rows_.dim);
        if (i < count && tid() % fixed_dot_lanes == 0) s_.values[i] = square;
      }
      __syncthreads();
    }
    if (tid() == 0) {
      double sum = 0;
      for (int i = 0; call_.means.data != nullptr && i < count; ++i) sum += s_.values[i];
      const packed_page to = page(j);
      to.count() = count;
      to.spread() = sum > 0 ? static_cast<float>(sqrt(sum / (count * rows_.trace))) : 0.0f;
      if (!keeps_links(call_.shape)) to.radius() = 0;
    }
    __syncthreads();
  }

  template <class Value>
  __device__ static float mean(int count, const Value& value) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += static_cast<double>(value(i));
    return count == 0 ? 0.0f : static_cast<float>(sum / count);
  }

  const index_call<E>& call_;
  const packing_shared<E>& s_;
  std::int64_t head_, first_;
  const std::int32_t* pages_;   // of the block
  const std::int32_t* frames_;  // of its rows
  int sinks_;                  // tokens of the block
  packed_rows<E> rows_;
};

template <int Threads, class E>
__global__ void __launch_bounds__(Threads, 2) index_blocks_kernel(index_call<E> call) {
  __shared__ seen_samples samples;
  __shared__ block_scratch<int, Threads> counts;
  __shared__ block_scratch<double, Threads> reduction;
  scratch_parts memory{dynamic_shared<std::byte>()};
  const packing_shared<E> shared(memory, call.shape.block, call.rows.key_dim);
  const std::int64_t unit = blockIdx.x;
  const block_to_index of = call.blocks[unit / call.rows.heads];
  block_indexer<Threads, E>(call, of, unit % call.rows.heads, shared).index(of, samples, counts, reduction);
}

/// Fills the columns of blocks of every KV head of one layer.
///
/// what        pages, counts, means and spreads, as index_blocks on the host
/// shapes      blocks (count) in device memory; members, means: the columns of dci_tree; energies: what a metric is learned from, null
///             data for none; finite_values: see dci_head; links: where the shape keeps them, what link_blocks has made of the same blocks
/// cost        one launch, a block of threads a block of tokens and head; keys are read from the caches of the multiprocessor
/// exactness   the bytes of the host
/// errors      usage_error: a shape that does not fit the page, or keeps links that are not there, or has blocks of more
///             than most_packed_tokens
template <element E>
void index_blocks(const device& exec, const dci_shape& shape, const row_view<const E>& rows, const column_array& members,
                  const column_array& means, const energy_column& energies, const rope_pairs& pairs, std::int64_t sink, bool finite_values,
                  const block_to_index* blocks, std::int64_t count, const column_array& links = {}, call_site where = call_site::here()) {
  require(is_valid(shape, rows.page_tokens), "index_blocks: the block must be whole pages, at most 65,536 tokens", where);
  require_range("index_blocks: tokens of a block, on a device", shape.block, 1, most_packed_tokens, where);
  require(!keeps_links(shape) || links.data != nullptr, "index_blocks: links must be there, as link_blocks makes them", where);
  require_range("index_blocks: key_dim", rows.key_dim, 1, 576, where);
  require(sink % rows.page_tokens == 0, "index_blocks: sinks must be whole pages", where);
  require_range("index_blocks: blocks", count, 0, INT32_MAX / (rows.heads > 0 ? rows.heads : 1), where);
  const index_call<E> call{shape, rows, members, means, energies, pairs, sink, finite_values, blocks, links};
  scratch_parts size;
  packing_shared<E>(size, shape.block, rows.key_dim);
  launch(exec,
         {.grid = dim3(static_cast<unsigned>(count * rows.heads)),
          .threads = packing_threads,
          .shared_bytes = static_cast<std::size_t>(size.used)},
         index_blocks_kernel<packing_threads, E>, call);
}

}  // namespace kvx
