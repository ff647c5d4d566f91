#pragma once
// Search for semantic pages on the host: a beam through the tree, means, or all tokens; then pages by their best member.

#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/index/dci_head.hpp>
#include <kvx/index/dci_lists.hpp>
#include <kvx/index/dci_tree.hpp>
#include <kvx/index/host/page_finder.hpp>
#include <kvx/index/page_search.hpp>
#include <kvx/layout/host/row_logits.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Bytes of scratch that search_pages needs for zones that end at or before `tokens`, at an address that is a multiple of 64.
inline std::int64_t search_pages_bytes(page_shape page, int group, std::int64_t tokens, const page_search& options) {
  scratch_parts s;
  host_pages::search_parts(s, page, group, tokens, options);
  return s.used;
}

/// The semantic pages that a group of queries looks for, on the caller's thread.
///
/// what        see dci_shape::ranking; a page's logits are, head by head, those of its best member that was seen. Without tree or means
///             (coded_member) all tokens are seen
/// shapes      cells: read by best_member alone; out: room for options.pages logical page ids
/// members     members(row_queries, ids span, logits (G, ids)) writes the logits of tokens; one that can't be found gets NaN
/// exactness   selections of two instruction sets may differ among pages whose scores are as close as float sums are
/// errors      usage_error: shapes that do not fit, a zone that is no whole pages or ends beyond the lists
template <element E, class MemberLogits>
page_search_result search_pages(const host&, const dci_shape& shape, const dci_head<E>& of, const dci_cells& cells, const page_query& query,
                                const page_search& options, const MemberLogits& members, std::span<std::int32_t> out,
                                std::span<std::byte> scratch, call_site where = call_site::here()) {
  const int P = of.rows.page_tokens;
  const auto group = static_cast<int>(query.queries.extents[0]);
  require(is_valid(shape, P), "search_pages: the block must be whole pages, at most 65,536 tokens", where);
  require_range("search_pages: heads of the group", group, 1, most_row_queries, where);
  require_shape("search_pages: queries", query.queries, {group, of.rows.key_dim}, where);
  require_range("search_pages: pages", options.pages, 0, INT32_MAX, where);
  require_range("search_pages: begin", query.begin, 0, query.end, where);
  require_range("search_pages: end", query.end, 0, INT32_MAX, where);
  require(query.begin % P == 0 && query.end % shape.block == 0, "search_pages: a zone begins with a page and ends with a block", where);
  const bool tree = shape.rank == dci_shape::ranking::best_member;
  if (tree) require_range("search_pages: end of the zone", query.end, 0, cells.tokens, where);
  const page_shape page{P, of.rows.key_dim, of.rows.value_dim};
  require(static_cast<std::int64_t>(scratch.size()) >= search_pages_bytes(page, group, query.end, options) &&
              reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 == 0,
          "search_pages: scratch is smaller than search_pages_bytes, or not aligned to 64 bytes", where);
  if (query.begin == query.end || options.pages == 0 || out.empty()) return {};

  scratch_parts memory{scratch.data()};
  const host_pages::search_parts parts(memory, page, group, query.end, options);
  host_pages::finder<E, MemberLogits> find(shape, of, query, options, members, parts);
  find.start();
  find.prepare_keys();
  const std::int64_t zone = query.end - query.begin;
  const std::int64_t probes = options.probes > 0 ? options.probes : default_probes(shape, P, zone, options.pages);
  const std::int64_t pages = zone / P,
                     proposed = of.codes.data != nullptr && options.probes == 0 ? proposed_pages(pages, options.pages) : pages;
  switch (shape.rank) {
    case dci_shape::ranking::best_member: find.descend(cells, options.beam > 0 ? options.beam : default_beam(zone)); break;
    case dci_shape::ranking::coded_member: find.look_at_all(); break;
    case dci_shape::ranking::mean_then_member:
      find.prepare_means();
      find.look_at_best(proposed < pages ? find.look_at_proposed(proposed) : find.look_at_means(), options.probes,
                        std::min(probes, proposed));
      break;
    case dci_shape::ranking::mean_key:
      find.prepare_means();
      find.rank_means(find.look_at_means(), out);
      return find.result();
    case dci_shape::ranking::two_level_means:
      find.prepare_means();
      find.rank_means(find.look_at_means_of_blocks(probes), out);
      return find.result();
  }
  find.rank_members(out);
  return find.result();
}

/// The same, with exact inner products.
template <element E>
page_search_result search_pages(const host& exec, const dci_shape& shape, const dci_head<E>& of, const dci_cells& cells,
                                const page_query& query, const page_search& options, std::span<std::int32_t> out,
                                std::span<std::byte> scratch, call_site where = call_site::here()) {
  const auto exact_members = [&](const row_queries& q, std::span<const std::int32_t> ids, tensor_view<float, 2> logits) {
    row_logits<E>(
        q, 0, static_cast<std::int64_t>(ids.size()), [&](std::int64_t i) { return of.key(ids[static_cast<std::size_t>(i)]); }, logits);
  };
  return search_pages(exec, shape, of, cells, query, options, exact_members, out, scratch, where);
}

/// The tokens of semantic pages: members that can be found, ascending.
///
/// shapes      pages (n), each once, in any order; ids: room for n P
/// returns     how many
template <class E>
std::int64_t tokens_of(const dci_shape& shape, const dci_head<E>& of, std::span<const std::int32_t> pages, std::int32_t* ids) {
  std::int64_t count = 0;
  for (const std::int32_t j : pages) {
    const std::int64_t block = static_cast<std::int64_t>(j) * of.rows.page_tokens / shape.block * shape.block;
    const packed_page page = of.packed(shape, j);
    for (int i = 0; i < page.count(); ++i) ids[count++] = static_cast<std::int32_t>(block + page.member(i));
  }
  std::sort(ids, ids + count);
  return count;
}

}  // namespace kvx
