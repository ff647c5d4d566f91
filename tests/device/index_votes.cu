// Votes on the device equal a brute-force count, for both subspaces and every head dimension; searches find what their references say.

#include <kvx/index/cuda/sign_buckets.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "device/bucket_case.cuh"
#include "support/sign_buckets.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

const device exec;

bucket_search_shape shape(int tokens, int dim, int subspace, bool norms = false) {
  bucket_search_shape s;
  s.sketch.subspace = subspace;
  s.sketch.centre = false;
  s.sketch.norms = norms;
  s.by = voting;
  s.page = {tokens, dim, dim};
  s.cut = {.sink = 5, .local = 10};
  s.heads = 2;
  s.group = 3;
  s.keep = 2;
  return s;
}

void search(bucket_case& c, int chunk = 0) {
  c.upload(chunk);
  search_buckets(exec, c.search(), c.on_device(), c.batch(), c.device_view());
  REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
}

std::int64_t tokens_of(const bucket_zone& z) { return std::max<std::int64_t>(z.end - z.begin, 0); }

void check_votes(bucket_case& c) {
  const bucket_search& s = c.search();
  for (std::int64_t u = 0; u < c.units(); ++u) {
    CAPTURE(u);
    const bucket_zone z = c.zone(u);
    const std::int64_t n = tokens_of(z);
    const scores expected = plain_votes(s.sketch, z, c.queries(u).view(1).rotated, window_count(s.breadth, n));
    CHECK(c.read(s.scores_of(u) + z.begin % z.page.tokens, n) == expected);
    CHECK(c.ids(u) == plain_selection(expected, z.begin, s.wanted(n, c.seen(u).committed)));
  }
}

}  // namespace

TEST_CASE("votes equal a brute-force count: head dimensions and windows") {
  for (const int subspace : {4, 8}) {
    for (const int dim : {1, 3, 4, 5, 8, 12, 46, 64, 80, 100, 128, 344, 576}) {
      for (const double window : {.002, .1, .5, 1.0}) {
        if (dim > 128 && window == .1) continue;
        CAPTURE(subspace);
        CAPTURE(dim);
        CAPTURE(window);
        bucket_search_shape s = shape(64, dim, subspace);
        s.heads = dim > 100 ? 1 : 2;
        s.breadth.fraction = .002;
        s.breadth.window = window;
        bucket_case c(s, {{300, 1}}, static_cast<std::uint32_t>(dim));
        search(c);
        check_votes(c);
      }
    }
  }
}

TEST_CASE("votes equal a brute-force count: pages, chunks, ragged batches, keys without a norm") {
  for (const int tokens : {1, 2, 16, 64, 256}) {
    for (const int chunk : {128, 4096}) {
      for (const int subspace : {4, 8}) {
        CAPTURE(tokens);
        CAPTURE(chunk);
        bucket_case c(shape(tokens, 24, subspace, true), {{400, 1}, {3, 1}, {0, 0}, {90, 2}}, 6);
        search(c, chunk);
        check_votes(c);
      }
    }
  }
}

TEST_CASE("counts of buckets add up, whatever the chunks") {
  bucket_search_shape s = shape(64, 44, 4);
  s.longest = 1000;
  for (const int chunk : {128, 1024}) {
    bucket_case c(s, {{700, 1}, {333, 1}}, 2);
    search(c, chunk);
    for (std::int64_t u = 0; u < c.units(); ++u) {
      const bucket_zone z = c.zone(u);
      std::vector<std::uint32_t> expected(6 * 256);
      for (std::int64_t t = z.begin; t < z.end; ++t) {
        for (int p = 0; p < 6; ++p) ++expected[static_cast<std::size_t>(256 * p + sign_byte(z, t, p))];
      }
      CHECK(c.read(c.search().buckets + u * 6 * 256, 6 * 256) == expected);
    }
  }
}

TEST_CASE("equal buckets, zero queries and queries that are no numbers") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, 1.0f, -1.0f, nan, inf, 3e38f, 1e-40f}) {
    for (const bool all : {false, true}) {
      CAPTURE(value);
      bucket_case c(shape(64, 32, 8), {{220, 1}}, 8);
      for (std::int64_t u = 0; u < c.units(); ++u) {
        auto& q = c.queries(u).rotated;
        std::fill(q.begin(), all ? q.end() : q.begin() + 32, value);
      }
      search(c);
      check_votes(c);
    }
  }
}

TEST_CASE("a search by sign sums finds the tokens of its stages' references, again and again") {
  bucket_search_shape s;
  s.page = {64, 64, 64};
  s.cut = {.sink = 4, .local = 40};
  s.heads = 2;
  s.group = 4;
  s.keep = 5;
  bucket_case c(s, {{700, 1}, {300, 2}}, 21);
  for (int turn = 0; turn < 2; ++turn) {
    search(c, turn == 0 ? 0 : 256);
    for (std::int64_t u = 0; u < c.units(); ++u) {
      const bucket_zone z = c.zone(u);
      const scores all = plain_sign_sums(s.sketch, s.by.of, z, c.queries(u).view(c.scale)).all();
      CHECK(c.ids(u) == plain_selection(all, z.begin, s.wanted(tokens_of(z), c.seen(u).committed)));
    }
  }
}
