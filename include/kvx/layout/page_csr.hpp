#pragma once
// Page tables of a batch in the CSR form that attention kernels of other libraries take.

#include <kvx/core/annotate.hpp>
#include <kvx/core/check.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx {

/// Pages of B sequences, one after the other.
///
/// shapes      indptr (B + 1): the pages of sequence b are indices[indptr[b]] .. indices[indptr[b + 1] - 1]
///             last_page_len (B): rows in the last page, 1..P; 0 for a sequence without pages
/// source      the layout of FlashInfer's paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len (Ye et al. 2025, section 3.1)
struct page_csr {
  std::vector<std::int32_t> indptr = {0};
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> last_page_len;

  std::int64_t sequences() const { return static_cast<std::int64_t>(last_page_len.size()); }

  std::span<const std::int32_t> pages(std::int64_t b) const {
    const auto first = static_cast<std::size_t>(indptr[static_cast<std::size_t>(b)]);
    return std::span(indices).subspan(first, static_cast<std::size_t>(indptr[static_cast<std::size_t>(b) + 1]) - first);
  }

  /// Tokens of sequence b.
  std::int64_t length(std::int64_t b, std::int64_t page_tokens) const {
    const auto n = static_cast<std::int64_t>(pages(b).size());
    return n == 0 ? 0 : (n - 1) * page_tokens + last_page_len[static_cast<std::size_t>(b)];
  }

  void add(std::span<const std::int32_t> pages, std::int64_t tokens, std::int64_t page_tokens) {
    indices.insert(indices.end(), pages.begin(), pages.end());
    indptr.push_back(static_cast<std::int32_t>(indices.size()));
    last_page_len.push_back(
        pages.empty() ? 0 : static_cast<std::int32_t>(tokens - (static_cast<std::int64_t>(pages.size()) - 1) * page_tokens));
  }
};

/// Throws a usage_error that names the first array entry that is out of its limits, for tables that come from elsewhere.
inline void check(const page_csr& csr, std::int64_t page_tokens, std::int64_t pool_pages, call_site where) {
  const auto size = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  require_range("size of indptr", size(csr.indptr), csr.sequences() + 1, csr.sequences() + 1, where);
  require_range("indptr[0]", csr.indptr[0], 0, 0, where);
  require_range("last entry of indptr", csr.indptr.back(), size(csr.indices), size(csr.indices), where);
  for (std::size_t b = 0; b < csr.last_page_len.size(); ++b) {
    require_range("an entry of indptr", csr.indptr[b + 1], csr.indptr[b], size(csr.indices), where);
    const bool empty = csr.indptr[b + 1] == csr.indptr[b];
    require_range("an entry of last_page_len", csr.last_page_len[b], empty ? 0 : 1, empty ? 0 : page_tokens, where);
  }
  for (const std::int32_t page : csr.indices) require_range("an entry of indices", page, 0, pool_pages - 1, where);
}

/// Rows and page tables of a batch in one trivially copyable struct: what a kernel takes.
template <class E>
struct paged_view {
  row_view<const E> rows;
  const std::int32_t* indptr = nullptr;
  const std::int32_t* indices = nullptr;
  const std::int32_t* last_page_len = nullptr;
  std::int64_t sequences = 0;

  KVX_HD constexpr std::int64_t length(std::int64_t b) const {
    const std::int64_t pages = indptr[b + 1] - indptr[b];
    return pages == 0 ? 0 : (pages - 1) * rows.page_tokens + last_page_len[b];
  }
  KVX_HD constexpr const E* key(std::int64_t b, std::int64_t head, std::int64_t token) const {
    return rows.key.at(indices[indptr[b] + token / rows.page_tokens], head, token % rows.page_tokens);
  }
  KVX_HD constexpr const E* value(std::int64_t b, std::int64_t head, std::int64_t token) const {
    return rows.value.at(indices[indptr[b] + token / rows.page_tokens], head, token % rows.page_tokens);
  }
};

/// The view of a table that must outlive it.
template <class E>
paged_view<std::remove_const_t<E>> view_of(const row_view<E>& rows, const page_csr& csr) {
  return {rows, csr.indptr.data(), csr.indices.data(), csr.last_page_len.data(), csr.sequences()};
}

}  // namespace kvx
