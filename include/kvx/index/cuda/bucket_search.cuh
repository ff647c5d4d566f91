#pragma once
// What the kernels of a search by sign buckets share: the arrays between its launches, and what a reranker reads of them.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/bucket_score.hpp>
#include <kvx/index/cuda/prepared_query.cuh>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/zones.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cstddef>
#include <cstdint>

namespace kvx {

/// What searches are planned for. A unit is a new token and a KV head: unit = token * heads + head.
///
/// heads, group    KV heads; query heads of each
/// tokens          new tokens of a step at most
/// longest         tokens of a sequence at most
/// keep, breadth   of retrieve_options; candidates follow from the zone of each token by candidate_count
/// ranked          false: no reranker follows, and `keep` tokens are proposed
/// tiered          candidates are wanted where none is kept, too: those take part by their codes
/// whole_below     of sequences that hold fewer committed tokens than this the whole zone is proposed, whatever the breadth
struct bucket_search_shape {
  key_sketch sketch;
  bucket_scoring by;
  page_shape page;
  zones cut;
  int heads = 1;
  int group = 1;
  std::int64_t tokens = 1;
  std::int64_t longest = 0;
  std::int64_t keep = 256;
  search_breadth breadth;
  bool ranked = true;
  bool tiered = false;
  std::int64_t whole_below = 0;

  KVX_HD constexpr std::int64_t units() const { return tokens * heads; }

  /// Tokens to propose from a zone of so many, in a sequence of so many committed tokens.
  KVX_HD constexpr std::int64_t wanted(std::int64_t zone, std::int64_t committed) const {
    if ((keep <= 0 && !tiered) || zone <= 0) return 0;
    if (committed < whole_below) return zone;
    return ranked ? candidate_count(breadth, by, zone, keep) : keep < zone ? keep : zone;
  }

  /// No search proposes more.
  KVX_HD constexpr std::int64_t most_wanted() const {
    const std::int64_t falls[] = {4999, 9999, 29999, 65535};  // the default fractions fall behind these
    std::int64_t most = wanted(longest, longest), whole = whole_below < longest ? whole_below : longest;
    if (whole > most) most = whole;
    for (const std::int64_t zone : falls) {
      const std::int64_t some = zone < longest ? wanted(zone, longest) : 0;
      if (some > most) most = some;
    }
    return most;
  }
};

/// The columns that a search reads, of one layer; those that the sketch has not have null data.
struct scanned_columns {
  column_array signs;
  column_array norms;
  column_array means;
};

inline scanned_columns scanned_columns_of(const key_columns& columns) {
  return {columns[column_signs], columns[column_norms], columns[column_means]};
}

/// Keys of a chunk, before its first one, that a search takes.
struct chunk_start {
  std::uint32_t above = 0;  ///< by their score
  std::uint32_t ties = 0;   ///< with the score of the cut, taken or not
};

/// The arrays of a search. Trivially copyable; all pointers are the device's.
///
/// ids         (units, id_pitch) candidates of each unit, ascending tokens           } what a search
/// counts      (units) how many                                                      } leaves behind
/// page_dots   (units, page_pitch, G) each head's dot with the page means, entry 0 for the page of the zone's first token; filled where
///             leaves_page_dots(), null elsewhere
/// queries     (units, query_pitch) prepared queries
/// scores      (units, score_pitch) bytes; place 0 is slot 0 of the page of the zone's first token
/// above       (units, chunks, 256) keys of each chunk with a score above that of the place
/// histograms  (units, 256) keys of each score     } cleared when a query is prepared
/// tickets     (units) chunks that are scored      }
/// cuts        (units)
/// starts      (units, chunks)
/// buckets     votes: (units, planes, 256) keys of each value of each plane byte; null elsewhere
/// chunk       tokens of a chunk, a power of two; chunks: of the longest zone
struct bucket_search : bucket_search_shape {
  std::int32_t* ids = nullptr;
  std::int32_t* counts = nullptr;
  float* page_dots = nullptr;
  std::byte* queries = nullptr;
  std::uint8_t* scores = nullptr;
  std::uint16_t* above = nullptr;
  std::uint32_t* histograms = nullptr;
  std::uint32_t* tickets = nullptr;
  candidate_cut* cuts = nullptr;
  chunk_start* starts = nullptr;
  std::uint32_t* buckets = nullptr;
  std::int64_t id_pitch = 0;
  std::int64_t page_pitch = 0;
  std::int64_t query_pitch = 0;
  std::int64_t score_pitch = 0;
  std::int64_t chunks = 0;
  int chunk = 0;

  KVX_HD constexpr std::int32_t* ids_of(std::int64_t unit) const { return ids + unit * id_pitch; }
  KVX_HD constexpr float* page_dots_of(std::int64_t unit) const { return page_dots + unit * page_pitch * group; }
  KVX_HD constexpr std::uint8_t* scores_of(std::int64_t unit) const { return scores + unit * score_pitch; }
};

/// Pages of a chunk at most, and its tokens.
inline constexpr int most_chunk_pages = 128, most_chunk_tokens = 4096;

/// Lays the arrays of a search out in memory of the device, at a multiple of 64 bytes; without memory it counts the bytes.
///
/// chunk       tokens that a block scores at most, a power of two; 0: what suits the size of the searches. Results do not depend on it
inline bucket_search plan_search(const bucket_search_shape& shape, scratch_parts& memory, int chunk = 0) {
  bucket_search s;
  static_cast<bucket_search_shape&>(s) = shape;
  const std::int64_t units = shape.units(), P = shape.page.tokens;
  const bool votes = shape.by.score == bucket_scoring::rule::votes;
  // Chunks as long as pays, yet enough of them for all multiprocessors.
  s.chunk = chunk > 0 && chunk < most_chunk_tokens ? chunk : most_chunk_tokens;
  while (s.chunk > P * most_chunk_pages) s.chunk /= 2;
  while (chunk == 0 && s.chunk > 1024 && units * ceil_div(shape.longest, s.chunk) < 512) s.chunk /= 2;
  s.chunks = ceil_div(shape.longest, s.chunk);
  s.id_pitch = round_up(shape.most_wanted(), 32);
  s.page_pitch = ceil_div(shape.longest, P);
  s.query_pitch = prepared_bytes(shape.sketch, shape.by, shape.page.key_dim, shape.group);
  s.score_pitch = s.chunks * s.chunk;
  s.ids = memory.take<std::int32_t>(units * s.id_pitch);
  s.counts = memory.take<std::int32_t>(units);
  if (leaves_page_dots(shape.sketch, shape.by)) s.page_dots = memory.take<float>(units * s.page_pitch * shape.group);
  s.queries = memory.take<std::byte>(units * s.query_pitch);
  s.scores = memory.take<std::uint8_t>(units * s.score_pitch);
  s.above = memory.take<std::uint16_t>(units * s.chunks * 256);
  s.histograms = memory.take<std::uint32_t>(units * 256);
  s.tickets = memory.take<std::uint32_t>(units);
  s.cuts = memory.take<candidate_cut>(units);
  s.starts = memory.take<chunk_start>(units * s.chunks);
  if (votes) s.buckets = memory.take<std::uint32_t>(units * 256 * plane_bytes(shape.page.key_dim));
  return s;
}

/// Bytes of device memory that plan_search lays out.
inline std::int64_t bucket_search_scratch(const bucket_search_shape& shape, int chunk = 0) {
  scratch_parts memory;
  plan_search(shape, memory, chunk);
  return memory.used;
}

}  // namespace kvx
