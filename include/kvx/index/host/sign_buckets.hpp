#pragma once
// Search of an index of sign buckets on the host, from queries to candidates.

#include <kvx/backend/host.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/check.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/host/scan_buckets.hpp>
#include <kvx/index/host/sign_sums.hpp>
#include <kvx/index/host/votes.hpp>
#include <kvx/index/sign_buckets.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Where a search keeps its prepared query, its bucket counts and its scores.
struct search_parts {
  std::byte* query;
  std::int64_t query_bytes;
  std::uint32_t* counts;
  std::uint8_t* scores;

  search_parts(scratch_parts& s, const key_sketch& sketch, const bucket_scoring& by, page_shape page, int group, std::int64_t tokens) {
    const bool votes = by.score == bucket_scoring::rule::votes;
    query_bytes = votes ? vote_bytes(sketch, page.key_dim) : sign_sum_bytes(page.key_dim, group);
    query = s.take<std::byte>(query_bytes);
    counts = s.take<std::uint32_t>(votes ? bucket_count_entries(page.key_dim) : 0);
    scores = s.take<std::uint8_t>(round_up(tokens, page.tokens) + page.tokens);
  }
};

/// Bytes of scratch that search_buckets needs for zones of at most so many tokens, at an address that is a multiple of 64.
inline std::int64_t search_bytes(const key_sketch& sketch, const bucket_scoring& by, page_shape page, int group, std::int64_t tokens) {
  scratch_parts s;
  search_parts(s, sketch, by, page, group, tokens);
  return s.used;
}

/// The candidates of one group in one zone.
///
/// what        prepare, count (votes), scan, cut and select, on the caller's thread; each stage is a function of its own
/// shapes      out: room for `count` ids; count: candidate_count(); page_dots (pages of the zone, G) or null: filled where
///             leaves_page_dots()
/// returns     how many were found: count, or fewer where keys have no score
/// exactness   the same ids for every instruction set and compiler
/// errors      usage_error as prepare_sign_sums and prepare_votes
inline std::int64_t search_buckets(const host& exec, const key_sketch& sketch, const bucket_scoring& by, const bucket_zone& z,
                                   const bucket_queries& in, const search_breadth& breadth, std::int64_t count, std::int32_t* out,
                                   std::span<std::byte> scratch, float* page_dots = nullptr, call_site where = call_site::here()) {
  const std::int64_t tokens = std::max<std::int64_t>(z.end - z.begin, 0);
  const int group = static_cast<int>(in.rotated.extents[0]);
  require(static_cast<std::int64_t>(scratch.size()) >= search_bytes(sketch, by, z.page, group, tokens),
          "search_buckets: scratch is smaller than search_bytes", where);
  scratch_parts memory{scratch.data()};
  const search_parts part(memory, sketch, by, z.page, group, tokens);
  const std::span prepared(part.query, static_cast<std::size_t>(part.query_bytes));
  const std::int64_t first = z.first_page(), last = z.last_page();
  bucket_query q;
  if (by.score == bucket_scoring::rule::votes) {
    std::fill_n(part.counts, bucket_count_entries(z.page.key_dim), 0u);
    count_buckets(exec, z, first, last, part.counts);
    q = prepare_votes(exec, sketch, z.page.key_dim, in.rotated, part.counts, window_count(breadth, tokens), prepared, where);
  } else {
    q = prepare_sign_sums(exec, sketch, by.of, z, in, prepared, where);
    if (leaves_page_dots(sketch, by)) q.page_dots = page_dots;
  }
  const std::span scores(part.scores, static_cast<std::size_t>((last - first) * z.page.tokens));
  scan_buckets(exec, q, z, first, last, scores, where);
  candidate_cut cut = cut_of(exec, scores, count);
  return select_candidates(exec, scores, first * z.page.tokens, cut, out);
}

}  // namespace kvx
