// Candidates on the device are those of a full sort with ties to the lowest token, for any chunks, ties and lengths.

#include <kvx/index/cuda/select_candidates.cuh>

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
  select_candidates(exec, c.search(), c.batch());
  REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
}

void check_all(bucket_case& c) {
  const bucket_search& s = c.search();
  for (std::int64_t u = 0; u < c.units(); ++u) {
    CAPTURE(u);
    const bucket_zone z = c.zone(u);
    const std::int64_t n = std::max<std::int64_t>(z.end - z.begin, 0), wanted = s.wanted(n, c.seen(u).committed);
    const scores all = plain_sign_sums(s.sketch, s.by.of, z, c.queries(u).view(c.scale)).all();
    CHECK(c.ids(u) == plain_selection(all, z.begin, wanted));
    if (wanted < s.id_pitch) CHECK(c.read(s.ids_of(u) + c.ids(u).size(), 1)[0] == -1);  // nothing is written behind them
  }
}

/// Keys of few different codes: scores with many ties.
void repeat_codes(bucket_case& c, int kinds) {
  const page_shape page = c.shape().page;
  const std::int64_t pages = c.zone(0).last_page();
  for (std::int64_t h = 0; h < c.shape().heads; ++h) {
    for (std::int64_t i = 0; i < pages; ++i) {
      std::byte* const signs = c.columns().block(column_signs, h, i);
      for (int t = 0; t < page.tokens; ++t) {
        for (int p = 0; p < plane_bytes(page.key_dim); ++p) signs[p * page.tokens + t] = static_cast<std::byte>((t * 7 + 3) % kinds * 37);
        c.columns().block(column_norms, h, i)[t] = static_cast<std::byte>(t % 13 == 5 ? 0 : 150);
      }
      for (int d = 0; d < page.key_dim; ++d) reinterpret_cast<bf16*>(c.columns().block(column_means, h, i))[d] = bf16{};
    }
  }
}

}  // namespace

TEST_CASE("candidates equal a full sort: pages, chunks, fractions, ragged lengths") {
  for (const int tokens : {1, 16, 64, 256}) {
    for (const int chunk : {128, 1024, 4096}) {
      for (const double fraction : {.02, .3, 1.0}) {
        CAPTURE(tokens);
        CAPTURE(chunk);
        CAPTURE(fraction);
        bucket_search_shape s = two_heads(tokens, 16, 2);
        s.breadth.fraction = fraction;
        bucket_case c(s, {{700, 2}, {2, 1}, {90, 1}, {0, 0}, {600, 1}}, static_cast<std::uint32_t>(tokens));
        c.upload(chunk);
        search(c);
        check_all(c);
      }
    }
  }
}

TEST_CASE("ties go to the lowest token") {
  for (const int kinds : {1, 2, 5}) {
    for (const double fraction : {.001, .11, .5, 1.0}) {
      for (const int chunk : {128, 512, 4096}) {
        CAPTURE(kinds);
        CAPTURE(fraction);
        bucket_search_shape s = two_heads(64, 16, 2);
        s.breadth.fraction = fraction;
        s.keep = 1;
        bucket_case c(s, {{2300, 1}}, 5);
        repeat_codes(c, kinds);
        c.upload(chunk);
        search(c);
        check_all(c);
      }
    }
  }
}

TEST_CASE("what is wanted: short sequences whole, without a reranker what is kept, nothing for nothing") {
  bucket_search_shape s = two_heads(64, 16, 2);
  s.whole_below = 400;
  bucket_case c(s, {{401, 1}, {400, 1}, {330, 3}, {900, 1}}, 6);
  c.upload();
  search(c);
  check_all(c);
  CHECK(c.ids(2).size() > 300);  // 399 committed tokens: all of the zone, but for keys without a norm
  s.ranked = false;
  s.keep = 40;
  bucket_case kept(s, {{900, 1}}, 6);
  kept.upload();
  search(kept);
  check_all(kept);
  CHECK(kept.ids(0).size() == 40);
  s.keep = 0;
  bucket_case none(s, {{900, 1}}, 6);
  none.upload();
  search(none);
  CHECK(none.ids(0).empty());
}

TEST_CASE("the same ids in every run, as lengths change under the same launches") {
  bucket_search_shape s = two_heads(32, 24, 4);
  s.breadth.fraction = .2;
  bucket_case c(s, {{1500, 1}, {1400, 1}}, 9);
  c.upload(256);
  for (const std::int64_t length : {1500, 1500, 1499, 40, 3, 1111}) {
    CAPTURE(length);
    c.set_length(0, length);
    search(c);
    for (std::int64_t u = 0; u < c.units(); ++u) {
      const bucket_zone z = c.zone(u);
      const std::int64_t n = std::max<std::int64_t>(z.end - z.begin, 0);
      const scores all = plain_sign_sums(s.sketch, s.by.of, z, c.queries(u).view(c.scale)).all();
      CHECK(c.ids(u) == plain_selection(all, z.begin, c.search().wanted(n, c.seen(u).committed)));
    }
  }
}
