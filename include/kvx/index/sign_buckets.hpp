#pragma once
// Index of sign buckets: keys are scored from their signs alone, by sums over the signs or by votes of buckets.

#include <kvx/core/annotate.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/layout/columns.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <array>
#include <cstdint>

namespace kvx {

/// How an index of sign buckets scores keys. The keys' codes are the same whatever is chosen here.
///
/// sign_sum    sum over subspaces of <q~_b, sign pattern>, times the norm where the sketch has one
/// votes       the rank of a key's bucket in each subspace, among buckets weighted by how many keys they hold
/// head_aware  sign sums alone: a key's score is the largest, over the heads of a group, of its estimated logit minus the log-sum-exp
///             of the head's resident logits. Needs norms; without them, the largest of the heads' own sums
/// mean_query  the score of the mean of the group's queries
/// source      votes, mean_query: ParisKV (arXiv 2602.07721) sections 3 and 4; sign_sum, head_aware: ours
struct bucket_scoring {
  enum class rule : std::uint8_t { sign_sum, votes };
  enum class query : std::uint8_t { head_aware, mean_query };

  rule score = rule::sign_sum;
  query of = query::head_aware;

  friend constexpr bool operator==(const bucket_scoring&, const bucket_scoring&) = default;
};

/// What ParisKV does: votes of the mean query.
inline constexpr bucket_scoring voting = {bucket_scoring::rule::votes, bucket_scoring::query::mean_query};

/// Votes rank all 2^m buckets of every subspace: 65,536 of them are not a table any more.
KVX_HD constexpr bool can_score(const key_sketch& s, const bucket_scoring& by) {
  return is_valid(s) && (by.score == bucket_scoring::rule::sign_sum || s.subspace <= 8);
}

/// A search leaves each head's dot with the page means behind, for a reranker that wants the same.
KVX_HD constexpr bool leaves_page_dots(const key_sketch& s, const bucket_scoring& by) {
  return s.centre && s.norms && by.score == bucket_scoring::rule::sign_sum && by.of == bucket_scoring::query::head_aware;
}

/// The policy: `Sketch` says how keys are coded, `By` how they are found.
template <key_sketch Sketch = key_sketch{}, bucket_scoring By = bucket_scoring{}>
struct sign_buckets {
  static_assert(is_valid(Sketch), "sign_buckets: subspace must be 4, 8 or 16, bits 1, 2, 4 or 8");
  static_assert(can_score(Sketch, By), "sign_buckets: votes rank 2^subspace buckets, so subspace must be 4 or 8; with 16 use the sign sum");

  static constexpr key_sketch sketch = Sketch;
  static constexpr bucket_scoring scoring = By;

  static constexpr std::array<column, sketch_column_count> columns(page_shape page) { return sketch_columns(Sketch, page); }
};
static_assert(index_policy<sign_buckets<>>);

/// How many candidates a search proposes; per call.
///
/// fraction    of the tokens searched; 0: the default of the scoring (default_fraction)
/// per_kept    at least so many for each token that will be kept
/// window      votes: the fraction of the keys whose buckets vote; 0: the default (default_window); never less than the fraction
struct search_breadth {
  double fraction = 0;
  int per_kept = 5;
  double window = 0;
};

/// Sign sums: .10, from 65,536 tokens on .05. Votes: the paper's schedule.
KVX_HD constexpr double default_fraction(const bucket_scoring& by, std::int64_t tokens) {
  if (by.score == bucket_scoring::rule::sign_sum) return tokens < 65536 ? .10 : .05;
  return tokens < 5000 ? .5 : tokens < 10000 ? .25 : tokens < 30000 ? .20 : .10;
}
KVX_HD constexpr double default_window(std::int64_t tokens) {
  return tokens < 5000 ? .5 : tokens < 10000 ? .30 : tokens < 30000 ? .25 : .20;
}

/// Candidates of a search over so many tokens: the fraction, rounded up, at least per_kept * keep, at least 1, at most all.
KVX_HD constexpr std::int64_t candidate_count(const search_breadth& b, const bucket_scoring& by, std::int64_t tokens, std::int64_t keep) {
  if (tokens <= 0) return 0;
  const double fraction = b.fraction > 0 ? b.fraction : default_fraction(by, tokens);
  if (!(fraction < 1)) return tokens;
  const double share = fraction * static_cast<double>(tokens);
  auto count = static_cast<std::int64_t>(share);
  if (static_cast<double>(count) < share) ++count;
  const std::int64_t wanted = keep > tokens ? tokens : keep * b.per_kept;
  if (count < wanted) count = wanted;
  return count < 1 ? 1 : count > tokens ? tokens : count;
}
static_assert(candidate_count({}, {}, 131072, 256) == 6554 && candidate_count({}, {}, 1000, 64) == 320 &&
              candidate_count({}, {}, 3, 64) == 3);

/// Keys inside the window of votes: the fraction of the tokens, rounded up, at least the candidates' fraction.
KVX_HD constexpr std::int64_t window_count(const search_breadth& b, std::int64_t tokens) {
  constexpr bucket_scoring votes = {bucket_scoring::rule::votes, bucket_scoring::query::mean_query};  // device code names no global
  const double fraction = b.fraction > 0 ? b.fraction : default_fraction(votes, tokens);
  const double window = b.window > 0 ? b.window : default_window(tokens);
  return candidate_count({.fraction = window > fraction ? window : fraction, .per_kept = 0}, votes, tokens, 0);
}
static_assert(window_count({}, 40000) == 8000 && window_count({.fraction = .5}, 40000) == 20000);

}  // namespace kvx
