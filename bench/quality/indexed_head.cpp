#include "indexed_head.hpp"

#include <kvx/core/bits.hpp>
#include <kvx/index/host/dci_tree.hpp>
#include <kvx/index/host/pack_block.hpp>
#include <kvx/index/host/page_search.hpp>

#include <algorithm>
#include <numeric>

namespace quality {
namespace {

const kvx::host alone{.threads = 1};

kvx::memory_block memory_of(std::int64_t bytes) { return {kvx::lazy_pages(), std::max<std::int64_t>(bytes, 64)}; }
std::span<std::byte> whole(const kvx::memory_block& block) { return {block.data(), static_cast<std::size_t>(block.size())}; }

/// Rows of one block as a packing reads them, and where it keeps its numbers.
struct whole_block {
  std::vector<float> rows;
  std::vector<std::int32_t> offsets;
  kvx::block_keys keys;

  whole_block(const head_rows& head, std::int64_t begin, std::int64_t end) {
    const std::int64_t pitch = kvx::block_key_pitch(head.dim);
    rows.resize(static_cast<std::size_t>((end - begin) * pitch));
    for (std::int64_t t = begin; t < end; ++t) {
      std::copy(head.key(t), head.key(t) + head.dim, rows.begin() + (t - begin) * pitch);
      offsets.push_back(static_cast<std::int32_t>(t - begin));
    }
    keys = {rows.data(), offsets.data(), static_cast<int>(end - begin), head.dim, pitch};
  }
};

}  // namespace

kvx::query_metric metric_at(const head_rows& head, std::int64_t end, kvx::dci_shape::metric by, std::vector<float>& values) {
  if (by == kvx::dci_shape::metric::keys) return {};
  const bool full = by == kvx::dci_shape::metric::full;
  kvx::query_moments moments(head.dim, full);
  for (std::int64_t p = std::max<std::int64_t>(end - kvx::metric_tokens, 0); p < end; ++p) {
    if (!kvx::metric_reads(p)) continue;
    for (int g = 0; g < head.group; ++g) moments.add(head.eighth_query(p / 8, g));
  }
  values.resize(static_cast<std::size_t>(full ? head.dim * head.dim : head.dim));
  return moments.write(values.data(), head.pairs);
}

page_list packed_whole(const head_rows& head, const kvx::dci_shape& shape, std::int64_t begin, std::int64_t end) {
  page_list pages;
  if (begin >= end) return pages;
  const whole_block block(head, begin, end);
  std::vector<float> values;
  const kvx::query_metric metric = metric_at(head, end, shape.by, values);
  kvx::scratch_parts size;
  kvx::packing_parts(size, end - begin, head.dim);
  const auto scratch = memory_of(size.used);
  kvx::scratch_parts memory{scratch.data()};
  const kvx::packing_parts parts(memory, end - begin, head.dim);
  std::vector<std::int32_t> order(static_cast<std::size_t>(end - begin)), parents(order.size());
  if (shape.pack == kvx::dci_shape::packing::projection) {  // parents: the library's own, as of one block
    kvx::dci_shape linked = shape;
    linked.block = static_cast<int>(kvx::round_up(end, page_tokens));
    const indexed_head tree(head, linked);
    for (std::int64_t t = begin; t < end; ++t) parents[static_cast<std::size_t>(t - begin)] = tree.parent(t);
  }
  kvx::pack_block(shape, block.keys, kvx::ask_block(block.keys, metric, parts).rows, parents.data(), page_tokens, parts, order.data());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % page_tokens == 0) pages.emplace_back();
    pages.back().push_back(static_cast<std::int32_t>(begin) + order[i]);
  }
  return pages;
}

indexed_head::indexed_head(const head_rows& head, const kvx::dci_shape& shape) : shape_(shape) {
  const std::int64_t tokens = kvx::round_down(head.tokens(), shape.block), pages = tokens / page_tokens, blocks = tokens / shape.block;
  for (const float x : head.keys) rows_.push_back(kvx::round_to<kvx::bf16>(x));
  ids_.resize(static_cast<std::size_t>(pages));
  std::iota(ids_.begin(), ids_.end(), 0);
  view_.rows.key = {rows_.data(), std::int64_t{page_tokens} * head.dim, 0, head.dim};
  view_.rows.value = view_.rows.key;
  view_.rows.heads = 1;
  view_.rows.page_tokens = page_tokens;
  view_.rows.key_dim = view_.rows.value_dim = head.dim;
  view_.pages = view_.column_pages = ids_.data();
  view_.sink = page_sink;
  const auto columns = kvx::dci_columns(shape, {page_tokens, head.dim, head.dim});
  const auto place = [&](const kvx::column& c) {
    memory_.push_back(memory_of(c.pitch() * pages));
    return kvx::column_array{c.block_bytes == 0 ? nullptr : memory_.back().data(), c.pitch(), 1, 0};
  };
  view_.members = place(columns[kvx::column_members]);
  view_.means = place(columns[kvx::column_member_means]);
  view_.links = place(columns[kvx::column_links]);
  view_.codes = place(columns[kvx::column_mean_codes]);

  std::vector<std::vector<float>> values(static_cast<std::size_t>(blocks));
  std::vector<kvx::query_metric> metrics;
  for (std::int64_t b = 0; b < blocks; ++b)
    metrics.push_back(metric_at(head, (b + 1) * shape.block, shape.by, values[static_cast<std::size_t>(b)]));
  const auto scratch = memory_of(kvx::index_blocks_bytes(shape, page_tokens, head.dim, tokens));
  kvx::index_blocks(alone, shape, view_, 0, blocks, metrics, whole(scratch));
  if (kvx::keeps_links(shape)) lists_.sync(view_, 0, tokens);
}

page_list indexed_head::pages(std::int64_t end) const {
  page_list all;
  std::vector<std::int32_t> ids(page_tokens);
  for (std::int32_t j = page_sink / page_tokens; j < end / page_tokens; ++j) {
    const std::int64_t count = kvx::tokens_of(shape_, view_, std::span(&j, 1), ids.data());
    all.emplace_back(ids.begin(), ids.begin() + count);
  }
  return all;
}

std::int32_t indexed_head::parent(std::int64_t token) const { return view_.links_of(token / page_tokens)[token % page_tokens]; }

std::vector<std::int32_t> indexed_head::search(std::span<const float> queries, std::span<const float> resident, std::int64_t end,
                                               const kvx::page_search& options, kvx::page_search_result& result) const {
  const int D = view_.rows.key_dim, group = static_cast<int>(queries.size()) / D;
  const auto scratch = memory_of(kvx::search_pages_bytes({page_tokens, D, D}, group, end, options));
  std::vector<std::int32_t> found(static_cast<std::size_t>(options.pages));
  const kvx::page_query query{kvx::tensor_view<const float, 2>(queries.data(), group, D), resident.empty() ? nullptr : resident.data(), 0,
                              page_sink, end};
  result = kvx::search_pages(alone, shape_, view_, lists_.cells(), query, options, found, whole(scratch));
  found.resize(static_cast<std::size_t>(result.found));
  std::vector<std::int32_t> tokens(found.size() * page_tokens);
  tokens.resize(static_cast<std::size_t>(kvx::tokens_of(shape_, view_, found, tokens.data())));
  return tokens;
}

}  // namespace quality
