#pragma once
// Whole runs of random operations on one layout.

#include "player.hpp"
#include "run_length.hpp"

#include <kvx/backend/host.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace kvx::test {

/// One run of random operations; what it must have met at least once is checked too, so that no case can fall silent.
template <class Layout>
void play_once(std::uint64_t seed, host exec) {
  CAPTURE(seed);
  player<Layout> p(seed, exec);
  const int count = operations();
  for (int i = 0; i < count; ++i) {
    CAPTURE(i);
    p.play();
  }
  p.clear();
  if (count < 1000) return;
  constexpr bool fills_pages = Layout::shares_pages || Layout::shape.tokens < 16;  // else slabs end before the first page leaves `local`
  CHECK(p.commits > count / 10);
  CHECK(p.refusals > count / 50);
  CHECK(p.shortages > (count < 10000 ? -1 : 0));  // rare where pages are large
  CHECK(p.attended > count / 500);
  CHECK(p.columns_checked > (fills_pages ? count / 20 : -1));
  CHECK(p.most_shared > (Layout::shares_pages ? 2 : -1));
}

/// Every run of the test that calls itself `test`.
template <class Layout>
void play(int test, host exec = {.threads = 1, .parallel = serial()}) {
  for (int run = 0; run < runs; ++run) play_once<Layout>(seed_of(test, run), exec);
}

}  // namespace kvx::test
