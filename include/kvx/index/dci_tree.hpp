#pragma once
// Index of semantic pages: pages of similar tokens, found through a tree over the keys or through what is kept of each page.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/random.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/page_codes.hpp>
#include <kvx/index/page_reuse.hpp>
#include <kvx/index/projections.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvx {

/// How tokens are put together in pages, and how pages are found.
///
/// block            tokens that are packed together once they have left the recent zone, aligned to positions; whole pages, at most 65,536
/// packing          positional: pages stay as they are; projection: cells of the tree, each cut along one random direction; greedy: a token
///                  and those nearest to it; bisection: halves at the median of the principal direction, down to pages
/// metric           what "similar" means to a packing: keys as they are, or weighted by the second moment of the queries (query_metric)
/// ranking          best_member: a page is worth its best token, exact keys found through the tree; coded_member: the same by the codes of
///                  all tokens; mean_key: its mean; mean_then_member: the best pages by mean and spread, then their tokens;
///                  two_level_means: blocks by their means, then the pages of the best blocks by theirs
/// first_promotion  of a thousand tokens, those that reach level 1; `promotion`: of a thousand of one level, those that reach the next
/// composite        composite indices of `simple` random lines each, by which best_member comes to the children of a beam where
///                  page_search::nearest says so (projections.hpp); 0: none is kept
/// seed             of promotions and random directions; one for the cache
/// source           IceCache (arXiv 2604.10539) on Prioritized DCI (arXiv 1703.00440): projection, best_member; p0 .01, here .03.
///                  bisection, blocks, the query metric and the spread are ours. The tree needs many inner products on real keys, since one
///                  token stands for a cell; docs/icecache.md has the numbers
struct dci_shape {
  enum class packing : std::uint8_t { positional, projection, greedy, bisection };
  enum class metric : std::uint8_t { keys, diagonal, full };
  enum class ranking : std::uint8_t { best_member, coded_member, mean_key, mean_then_member, two_level_means };

  int block = 256;
  packing pack = packing::bisection;
  metric by = metric::diagonal;
  ranking rank = ranking::mean_then_member;
  int first_promotion = 30;
  int promotion = 200;
  int simple = 1;
  int composite = 0;
  std::uint64_t seed = 0x6b76785f64636974;

  friend constexpr bool operator==(const dci_shape&, const dci_shape&) = default;
};

KVX_HD constexpr bool is_valid(const dci_shape& s, int page_tokens) {
  return page_tokens > 0 && s.block >= page_tokens && s.block <= 65536 && s.block % page_tokens == 0 && s.first_promotion >= 1 &&
         s.first_promotion <= 500 && s.promotion >= 1 && s.promotion <= 500 && s.simple >= 1 && s.composite >= 0 &&
         s.simple <= most_lines && s.composite <= most_lines && s.simple * s.composite <= most_lines;
}

/// Levels above the lowest.
inline constexpr int most_dci_level = 15;

/// The highest level of the token at a position: a pure function of seed and position, so that nothing needs to be kept or undone.
KVX_HD constexpr int level_of(const dci_shape& s, std::int64_t position) {
  int level = 0;
  for (std::uint64_t part = 1000 - static_cast<std::uint64_t>(s.first_promotion); level < most_dci_level;
       part = 1000 - static_cast<std::uint64_t>(s.promotion)) {
    const std::uint64_t draw = random_bits(s.seed + static_cast<std::uint64_t>(level), static_cast<std::uint64_t>(position)) >> 32;
    if (draw * 1000 >> 32 < part) break;
    ++level;
  }
  return level;
}
static_assert([] {
  int promoted = 0;
  for (int t = 0; t < 4096; ++t) promoted += level_of({}, t) > 0 ? 1 : 0;
  return promoted > 90 && promoted < 160;  // 123 of 4,096
}());

/// Whether links of the tree are kept: the search follows them, and the packing of cells reads them. Means are read by searches, and by
/// what stands for tokens whose rows are not read (block_columns).
KVX_HD constexpr bool keeps_links(const dci_shape& s) {
  return s.rank == dci_shape::ranking::best_member || s.pack == dci_shape::packing::projection;
}
KVX_HD constexpr int lines_of(const dci_shape& s) { return keeps_links(s) ? s.simple * s.composite : 0; }
KVX_HD constexpr bool keeps_means(const dci_shape& s) {
  return s.rank == dci_shape::ranking::mean_key || s.rank == dci_shape::ranking::mean_then_member ||
         s.rank == dci_shape::ranking::two_level_means;
}
/// Whether the means are coded too: where a search looks at all of them first.
KVX_HD constexpr bool codes_means(const dci_shape& s, int page_tokens) {
  return s.rank == dci_shape::ranking::mean_then_member && s.block / page_tokens % coded_pages == 0;
}
KVX_HD constexpr bool keeps_block_means(const dci_shape& s) { return s.rank == dci_shape::ranking::two_level_means; }

/// Columns of an index, in this order; those that it has not have blocks of 0 bytes. The block of page j of a block of tokens is that of
/// its j-th page in time order; all are a pure function of the rows of the sequence up to the end of the block, and of the query metric.
///
/// members     see packed_page
/// means       [D] bf16: the mean of the page's members; two_level_means: [2][D], behind it that of the block in its first page, else zeros
/// links       [P] int32, slots in time order: the position of each token's parent, no_parent, or not_in_tree
/// places      [P][lines] float, slots in time order: where each token of the tree stands, NaN for the others
/// codes       see page_code_lines
enum dci_column : std::uint8_t { column_members, column_member_means, column_links, column_places, column_mean_codes, dci_column_count };

/// A token whose parent is the root, since no token of the level above came before it; and one that the tree does not hold: a sink, or
/// one whose key is never found.
inline constexpr std::int32_t no_parent = -1, not_in_tree = -2;

/// What is kept of one page, rows staying in time order: which tokens of the block are its members, and in which page of the block each of
/// its own slots went.
///
/// shapes      members [P], places [P], each of one byte, of two with blocks above 256; then count, spread and radius
/// count       members that can be found come first, ascending; the others (keys with NaN, infinity or a norm of 2^60 and more) behind
///             them, so that members of all pages of a block are a permutation
/// spread      how far a logit of a member lies from that of the mean, for a query of length 1 that the metric expects:
///             sqrt(mean over members of (k - mean) . M (k - mean) / trace M)
/// radius      of the sphere that keys of this block were put on, see dci_links; 0 without links
struct packed_page {
  std::byte* data = nullptr;
  int tokens = 0;  ///< P
  int bytes = 1;  ///< of an entry

  KVX_HD constexpr int member(int i) const { return entry(i); }
  KVX_HD constexpr int place(int slot) const { return entry(tokens + slot); }
  KVX_HD constexpr void set_member(int i, int offset) const { set(i, offset); }
  KVX_HD constexpr void set_place(int slot, int page) const { set(tokens + slot, page); }

  KVX_HD std::int32_t& count() const { return *reinterpret_cast<std::int32_t*>(data + scalars(tokens, bytes)); }
  KVX_HD float& spread() const { return *reinterpret_cast<float*>(data + scalars(tokens, bytes) + 4); }
  KVX_HD float& radius() const { return *reinterpret_cast<float*>(data + scalars(tokens, bytes) + 8); }

  KVX_HD static constexpr int entry_bytes(const dci_shape& s) { return s.block <= 256 ? 1 : 2; }
  KVX_HD static constexpr std::int64_t scalars(int tokens, int bytes) { return round_up(std::int64_t{2} * tokens * bytes, 4); }
  KVX_HD static constexpr std::int64_t block_bytes(const dci_shape& s, int tokens) { return scalars(tokens, entry_bytes(s)) + 12; }

 private:
  KVX_HD constexpr int entry(int i) const {
    const int low = static_cast<int>(data[i * bytes]);
    return bytes == 1 ? low : low | static_cast<int>(data[i * bytes + 1]) << 8;
  }
  KVX_HD constexpr void set(int i, int value) const {
    data[i * bytes] = static_cast<std::byte>(value & 255);
    if (bytes == 2) data[i * bytes + 1] = static_cast<std::byte>(value >> 8);
  }
};

constexpr std::array<column, dci_column_count> dci_columns(const dci_shape& s, page_shape page) {
  std::array<column, dci_column_count> result;
  result[column_members].block_bytes = packed_page::block_bytes(s, page.tokens);
  result[column_member_means].block_bytes = keeps_means(s) ? std::int64_t{2} * (keeps_block_means(s) ? 2 : 1) * page.key_dim : 0;
  result[column_links].block_bytes = keeps_links(s) ? std::int64_t{4} * page.tokens : 0;
  result[column_places].block_bytes = std::int64_t{4} * page.tokens * lines_of(s);
  if (codes_means(s, page.tokens)) result[column_mean_codes].block_bytes = page_code_lines{page.key_dim}.block_bytes();
  return result;
}
static_assert(dci_columns({}, {16, 128, 128})[column_members].pitch() == 64 && dci_columns({}, {16, 128, 128})[column_links].pitch() == 0);

/// The policy.
///
/// rule, interleave   how the heads of a group rank pages together, see page_search
/// reuse       of pages, for prompts of at most 32 tokens and selections of at most 64 pages
template <dci_shape Shape = dci_shape{}>
struct dci_tree {
  static_assert(is_valid(Shape, 1),
                "dci_tree: block is 1 to 65,536 tokens, promotions are 1 to 500 of a thousand, composite indices have 64 lines at most");

  static constexpr dci_shape shape = Shape;

  static constexpr std::array<column, dci_column_count> columns(page_shape page) { return dci_columns(Shape, page); }

  group_rule rule = {};
  bool interleave = false;
  page_reuse reuse = {};
};
static_assert(index_policy<dci_tree<>>);

}  // namespace kvx
