#pragma once
// The blocks of tokens that a commit moves into the retrieval zone, and the filling of their columns.

#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/block_columns.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/query_metric.hpp>
#include <kvx/layer_memory.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvx {

/// Blocks [first, first + count) of one entry of a step.
///
/// follows     the block before them enters with another entry of the step
struct entering_blocks {
  std::size_t entry = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool follows = false;
};

/// Blocks between the edge before the step and the edge after it, each once: forks in one batch may move blocks whose pages they share.
/// Blocks of an entry follow each other.
///
/// columns_of  (entries): ids under which the columns of retrieving layers lie
inline std::vector<entering_blocks> blocks_of(const reservation& step, const zones& by, std::int64_t page_tokens,
                                              std::span<const std::int64_t> accepted, std::span<const batch_item> columns_of) {
  const std::int64_t pages = by.unit / page_tokens;
  std::vector<entering_blocks> result;
  const auto entered = [&](const std::int32_t* block) {  // by an earlier entry
    return std::any_of(result.begin(), result.end(), [&](const entering_blocks& e) {
      for (std::int64_t b = e.first; b < e.first + e.count; ++b) {
        if (std::equal(block, block + pages, columns_of[e.entry].pages + b * pages)) return true;
      }
      return false;
    });
  };
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const reservation::part& p = step.parts[i];
    const std::int64_t n = p.length + (accepted.empty() ? p.tokens : accepted[i]);
    const std::int64_t end = edge(by, n, page_tokens) / by.unit;
    std::vector<entering_blocks> own;
    bool follows = false;
    for (std::int64_t b = edge(by, p.length, page_tokens) / by.unit; b < end; ++b) {
      if (entered(columns_of[i].pages + b * pages)) {
        follows = true;
        continue;
      }
      if (!own.empty() && own.back().first + own.back().count == b) {
        ++own.back().count;
      } else {
        own.push_back({i, b, 1, follows});
      }
      follows = false;
    }
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

/// Scratch of one worker that indexes runs of at most `most` blocks, the last of which ends at `longest`.
struct indexing_scratch {
  std::byte* index;
  std::int64_t index_bytes;
  float* means;           // (blocks, D)
  query_metric* metrics;  // (blocks)
  double* sums;           // (D)

  indexing_scratch(scratch_parts& s, const dci_shape& shape, page_shape page, std::int64_t longest, std::int64_t most)
      : index_bytes(index_blocks_bytes(shape, page.tokens, page.key_dim, longest)) {
    index = s.take<std::byte>(index_bytes);
    means = s.take<float>(most * page.key_dim);
    metrics = s.take<query_metric>(most);
    sums = s.take<double>(page.key_dim);
  }
};

/// Fills the columns of these blocks in one layer.
///
/// rows_of, columns_of   (entries): where rows and columns lie, page by page
/// pairs       channels that share their part of the metric
/// metric      learned from the queries that were seen of the last metric_tokens positions before the end of a block
/// errors      bad_alloc, before anything is written
template <class E>
void index_entering(const host& exec, const dci_shape& shape, page_shape page, std::int64_t sink, const rope_pairs& pairs,
                    const row_view<const E>& rows, const block_column_arrays& side, std::span<const entering_blocks> blocks,
                    std::span<const batch_item> rows_of, std::span<const batch_item> columns_of) {
  const std::int64_t tasks = std::ssize(blocks) * rows.heads, D = page.key_dim;
  std::int64_t longest = 0, most = 0;
  for (const entering_blocks& b : blocks) {
    longest = std::max(longest, (b.first + b.count) * shape.block);
    most = std::max(most, b.count);
  }
  scratch_parts size;
  indexing_scratch(size, shape, page, longest, most);
  const std::int64_t workers = host_dense::workers_of(exec, tasks);
  memory_block memory = allocate(exec, workers * size.used + 64);
  void* start = memory.data();
  auto space = static_cast<std::size_t>(memory.size());
  auto* const at_first = static_cast<std::byte*>(std::align(64, 1, start, space));
  const auto index = [&](std::int64_t from, std::int64_t to) {
    std::atomic<std::int64_t> claimed{from * rows.heads};
    for_each_task(exec, workers, [&](std::int64_t worker) {
      scratch_parts own{at_first + worker * size.used};
      const indexing_scratch at(own, shape, page, longest, most);
      for (std::int64_t i = claimed.fetch_add(1); i < to * rows.heads; i = claimed.fetch_add(1)) {
        const entering_blocks& b = blocks[static_cast<std::size_t>(i / rows.heads)];
        const std::int64_t head = i % rows.heads;
        const std::int32_t* const ids = columns_of[b.entry].pages;
        std::span<query_metric> metrics(at.metrics, static_cast<std::size_t>(learns_metric(shape) ? b.count : 0));
        for (std::size_t j = 0; j < metrics.size(); ++j) {
          const std::int64_t end = (b.first + static_cast<std::int64_t>(j) + 1) * shape.block;
          float* const means = at.means + static_cast<std::int64_t>(j) * D;
          const std::int64_t seen = mean_energies(energies_of(side, page), ids, head, std::max<std::int64_t>(end - metric_tokens, 0), end,
                                                  pairs, {at.sums, static_cast<std::size_t>(D)}, means);
          metrics[j] = {seen > 0 ? means : nullptr, false};
        }
        index_blocks(host{.threads = 1}, shape, tree_head<E>(rows, side, rows_of[b.entry].pages, ids, head, sink), b.first, b.count,
                     std::span<const query_metric>(metrics), {at.index, static_cast<std::size_t>(at.index_bytes)});
      }
    });
  };
  // Links lead to the blocks before: those that another entry packs are there first.
  std::int64_t done = 0;
  for (std::int64_t i = 1; i <= std::ssize(blocks); ++i) {
    if (i < std::ssize(blocks) && !(keeps_links(shape) && blocks[static_cast<std::size_t>(i)].follows)) continue;
    index(done, i);
    done = i;
  }
}

}  // namespace kvx
