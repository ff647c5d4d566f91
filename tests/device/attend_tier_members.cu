// Members of tiers on the device: what a full sort proposes, and all of the pages that have no tail, page by page.

#include <kvx/attend/cuda/tier_members.cuh>
#include <kvx/attend/tiers.hpp>
#include <kvx/index/cuda/scan_buckets.cuh>
#include <kvx/index/cuda/sign_sums.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "device/bucket_case.cuh"
#include "device/device_array.cuh"
#include "support/sign_buckets.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

const device exec;

bucket_search_shape shape(int page_tokens, double fraction, std::int64_t keep = 3) {
  bucket_search_shape s;
  s.page = {page_tokens, 16, 16};
  s.cut = {.sink = 3, .local = 20};
  s.heads = 2;
  s.group = 2;
  s.keep = keep;
  s.tiered = true;
  s.breadth = {.fraction = fraction, .per_kept = 0};
  return s;
}

/// Members of one unit by definition.
struct expected_members {
  std::vector<std::int32_t> ids;
  std::vector<tier_page> pages;

  expected_members(const bucket_case& c, const bucket_zone& z, const bucket_queries& q, std::int64_t wanted, bool expands) {
    const std::int64_t P = z.page.tokens;
    const std::vector<std::int32_t> proposed =
        plain_selection(plain_sign_sums(c.search().sketch, c.search().by.of, z, q).all(), z.begin, wanted);
    const auto found = [&](std::int64_t t) { return z.block(column_norms, t / P)[t % P] != std::byte{never_found}; };
    const auto members = [&](bool of_broken_pages) {
      std::set<std::int32_t> all(proposed.begin(), proposed.end());
      for (std::int64_t j = z.first_page(); expands && j < z.last_page(); ++j) {
        const std::int64_t begin = std::max(z.begin, j * P), end = std::min(z.end, (j + 1) * P);
        bool broken = false;
        std::int64_t left = P;
        for (std::int64_t t = begin; t < end; ++t) broken = broken || !found(t);
        for (const std::int32_t id : proposed) left -= id / P == j ? 1 : 0;
        if (end - begin == P && !broken && left >= fewest_in_tail) continue;
        for (std::int64_t t = begin; t < end && (of_broken_pages || !broken); ++t) {
          if (found(t)) all.insert(static_cast<std::int32_t>(t));
        }
      }
      return std::vector<std::int32_t>(all.begin(), all.end());
    };
    ids = members(true);
    if (std::ssize(ids) > most_in_codes(z.end - z.begin, wanted, P)) ids = members(false);
    for (std::int64_t j = z.first_page(); j < z.last_page(); ++j) {
      bool whole = j * P >= z.begin && (j + 1) * P <= z.end;
      for (std::int64_t t = j * P; whole && t < (j + 1) * P; ++t) whole = found(t);
      const auto before = std::lower_bound(ids.begin(), ids.end(), static_cast<std::int32_t>(j * P)) - ids.begin();
      pages.push_back({static_cast<std::int32_t>(before), whole ? static_cast<std::int32_t>(P) : 0});
    }
    pages.push_back({static_cast<std::int32_t>(ids.size()), 0});
  }
};

/// Selects on the device, twice in the same memory, and compares every unit. Returns how many units were bounded.
int check_all(bucket_case& c, bool expands) {
  const bucket_search& s = c.search();
  scratch_parts size;
  plan_members(s, size);
  const device_array<std::byte> memory(static_cast<std::size_t>(size.used));
  const device_array<unsigned> counters(std::vector<unsigned>(static_cast<std::size_t>(tier_members::counters_needed(s))));
  scratch_parts parts{memory.data()};
  tier_members m = plan_members(s, parts);
  m.counters = counters.data();
  for (int run = 0; run < (expands ? 2 : 1); ++run) {
    prepare_sign_sums(exec, s, c.on_device(), c.batch(), c.device_view());
    scan_sign_sums(exec, s, c.on_device(), c.batch());
    select_members(exec, s, c.batch(), m, expands);
  }
  REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
  for (const unsigned n : counters.read()) CHECK(n == 0);
  int bounded = 0;
  for (std::int64_t u = 0; u < c.units(); ++u) {
    CAPTURE(u);
    const bucket_zone z = c.zone(u);
    const std::int64_t n = std::max<std::int64_t>(z.end - z.begin, 0), count = c.read(m.counts + u, 1)[0];
    if (n == 0) {
      CHECK(count == 0);
      continue;
    }
    const expected_members expected(c, z, c.queries(u).view(c.scale), s.wanted(n, c.seen(u).committed), expands);
    CHECK(c.read(m.ids + u * m.id_pitch, count) == expected.ids);
    if (count < m.id_pitch) CHECK(c.read(m.ids + u * m.id_pitch + count, 1)[0] == -1);  // nothing is written behind them
    const auto pages = c.read(m.pages_of(u), std::ssize(expected.pages));
    for (std::size_t i = 0; i < pages.size(); ++i) {
      CHECK(pages[i].start == expected.pages[i].start);
      CHECK(pages[i].tokens == expected.pages[i].tokens);
    }
    bounded += expands && most_in_codes(n, s.wanted(n, c.seen(u).committed), z.page.tokens) < n ? 1 : 0;
  }
  return bounded;
}

}  // namespace

TEST_CASE("members of every page size and breadth, ragged lengths; nothing kept") {
  const double fractions[] = {.02, .3, .8, 1.0};
  int turn = 0;
  for (const int P : {1, 4, 8, 16, 32, 64, 128, 256}) {
    const double fraction = fractions[turn++ % 4];
    CAPTURE(P);
    CAPTURE(fraction);
    bucket_case c(shape(P, fraction, P == 16 ? 0 : 3), {{560, 1}, {2, 1}, {90, 2}, {0, 0}}, static_cast<std::uint32_t>(P));
    c.upload(P == 256 ? 256 : 128);
    check_all(c, turn % 3 != 0);
  }
  bucket_case c(shape(16, .2), {{300, 1}}, 5);
  c.upload(64);
  check_all(c, true);
  check_all(c, false);
}

TEST_CASE("pages with one broken key, pages of broken keys, as many of them as are taken as coded and more") {
  for (const int broken : {0, 2, 30}) {
    CAPTURE(broken);
    bucket_case c(shape(64, .05), {{1500, 1}}, 11);
    for (int h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < 24; ++i) {
        for (int t = 0; t < 64; ++t) {
          std::byte& norm = c.columns().block(column_norms, h, i)[t];
          if (norm == std::byte{never_found}) norm = std::byte{140};
          if (i % 6 == 2 ? i / 6 < broken - 1 && h == 0 : t == 9 && i < broken) norm = std::byte{never_found};
        }
      }
    }
    c.upload();
    CHECK(check_all(c, true) == 2);
  }
}

TEST_CASE("sequences that keep their whole zone, lengths that change under the same launches") {
  bucket_search_shape s = shape(32, .1);
  s.whole_below = 400;
  bucket_case c(s, {{401, 1}, {400, 1}, {900, 1}}, 6);
  c.upload(256);
  for (const std::int64_t length : {900, 40, 711}) {
    CAPTURE(length);
    c.set_length(2, length);
    check_all(c, true);
  }
}

TEST_CASE("pages longer than a chunk and sketches without norms are refused") {
  bucket_case c(shape(256, .1), {{700, 1}}, 3);
  c.upload(128);
  CHECK_THROWS_AS(select_members(exec, c.search(), c.batch(), {}, true), usage_error);
  bucket_search_shape s = shape(64, .1);
  s.sketch.norms = false;
  bucket_case bare(s, {{700, 1}}, 3);
  bare.upload();
  CHECK_THROWS_AS(select_members(exec, bare.search(), bare.batch(), {}, true), usage_error);
}
