// The scan on the device: every split gives the same bytes, cuts and page dots, for ragged batches, replayed as lengths grow.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "device/bucket_case.cuh"
#include "support/sign_buckets.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

const device exec;

void search(const bucket_case& c) {
  scan(exec, c);
  REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
}

/// Everything that a scan leaves of one unit, against the reference.
void check_unit(const bucket_case& c, const kvx::test::group_queries& q, const bucket_zone& z, std::int64_t committed, std::int64_t u) {
  CAPTURE(u);
  const bucket_search& s = c.search();
  const std::int64_t n = std::max<std::int64_t>(z.end - z.begin, 0);
  const scores expected = plain_sign_sums(s.sketch, s.by.of, z, q.view(c.scale)).all();
  const std::int64_t before = z.begin % z.page.tokens;
  const auto found = c.read(s.scores_of(u), n > 0 ? before + n : 0);
  CHECK(
      std::all_of(found.begin(), found.begin() + std::min<std::int64_t>(before, std::ssize(found)), [](auto x) { return x == no_score; }));
  if (n > 0) CHECK(scores(found.begin() + before, found.end()) == expected);

  std::vector<std::uint32_t> histogram(256);
  for (const std::uint8_t x : expected) ++histogram[x];
  const candidate_cut cut = cut_of(histogram.data(), s.wanted(n, committed)), there = c.read(s.cuts + u, 1)[0];
  CHECK(there.level == cut.level);
  CHECK(there.ties == cut.ties);
  CHECK(there.count == cut.count);
  CHECK(c.read(s.counts + u, 1)[0] == cut.count);

  const std::int64_t first = z.first_page(), pages = z.last_page() - first;
  if (s.page_dots == nullptr || n == 0) return;
  const auto dots = c.read(s.page_dots_of(u), pages * s.group);
  const int dim = s.page.key_dim;
  std::vector<float> scaled(static_cast<std::size_t>(sign_sum_parts::page_pitch(dim)));
  for (int g = 0; g < s.group; ++g) {
    (void)fill_page_query(q.plain.data() + g * dim, dim, scaled.data());
    for (std::int64_t i = 0; i < pages; ++i) {
      float expect = 0;
      simd::scan_kernels_of(instruction_set::baseline)
          .page_dots(scaled.data(), std::ssize(scaled), 1, reinterpret_cast<const bf16*>(z.block(column_means, first + i)), dim, &expect);
      CHECK(dots[static_cast<std::size_t>(i * s.group + g)] == expect);
    }
  }
}

void check_all(bucket_case& c) {
  for (std::int64_t u = 0; u < c.units(); ++u) check_unit(c, c.queries(u), c.zone(u), c.seen(u).committed, u);
}

}  // namespace

TEST_CASE("ragged batches: scores, cuts and page dots of every unit, for chunks of any size") {
  for (const int tokens : {16, 32, 64, 128}) {
    for (const int chunk : {128, 256, 1024, 4096}) {
      CAPTURE(tokens);
      CAPTURE(chunk);
      bucket_search_shape s = two_heads(tokens, 32, 3);
      s.breadth.fraction = .1;
      bucket_case c(s, {{700, 2}, {1, 1}, {24, 1}, {130, 1}, {0, 0}, {1111, 1}}, static_cast<std::uint32_t>(tokens));
      c.upload(chunk);
      search(c);
      check_all(c);
    }
  }
}

TEST_CASE("every residue of the length") {
  bucket_search_shape s = two_heads(16, 24, 2);
  s.heads = 1;
  std::vector<searched> sequences;
  for (int n = 100; n < 134; ++n) sequences.push_back({n, 1});
  bucket_case c(s, sequences, 4);
  c.upload(128);
  search(c);
  check_all(c);
}

TEST_CASE("a launch planned for more tokens and longer sequences") {
  bucket_search_shape s = two_heads(64, 32, 4);
  s.longest = 5000;
  s.tokens = 5;
  bucket_case c(s, {{700, 1}, {300, 1}}, 7);
  c.upload();
  search(c);
  check_all(c);
  const auto counts = c.read(c.search().counts, c.search().units());
  CHECK(std::all_of(counts.begin() + c.units(), counts.end(), [](std::int32_t n) { return n == 0; }));
}

TEST_CASE("the same launches again, and after lengths have changed: nothing is left over") {
  bucket_search_shape s = two_heads(64, 32, 4);
  bucket_case c(s, {{2500, 1}, {900, 1}}, 8);
  c.upload(512);
  for (int turn = 0; turn < 2; ++turn) {
    search(c);
    check_all(c);
  }
  for (const std::int64_t length : {2499, 100, 4, 1300}) {
    c.set_length(0, length);
    search(c);
    check_all(c);
  }
}

TEST_CASE("most wanted is enough for every length") {
  for (const double fraction : {0.0, .02, 2.0}) {
    for (const auto rule : {bucket_scoring::rule::sign_sum, bucket_scoring::rule::votes}) {
      for (const std::int64_t keep : {0, 1, 300, 20000}) {
        for (const bool ranked : {false, true}) {
          bucket_search_shape s;
          s.by.score = rule;
          s.keep = keep;
          s.breadth.fraction = fraction;
          s.ranked = ranked;
          s.whole_below = 2000;
          s.longest = 70000;
          std::int64_t most = 0;
          for (std::int64_t n = 0; n <= s.longest; ++n) most = std::max(most, s.wanted(n, n));
          CHECK(s.most_wanted() >= most);
        }
      }
    }
  }
}
