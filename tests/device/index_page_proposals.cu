// The pages that the codes of their means propose on the device are the host's, to the last one, and what is found is found among them.

#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/index/cuda/page_proposals.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "page_search_case.cuh"

using namespace kvx;
using test::search_case;
using test::search_world;

TEST_CASE("from 2,048 pages on, codes propose the pages that the host's do, and no others are found; shorter zones beside them are whole") {
  const dci_shape coded{.block = 32};
  const std::vector<std::int64_t> around{4150, 4100};  // zones of 2,061 and of 2,029 pages
  search_world w({.shape = coded, .page_tokens = 2, .sink = 6, .lengths = around, .options = {.keep = 20}});
  for (std::int64_t t = 64; t < 96; ++t) w.key(0, t)[0] = round_to<bf16>(quiet_nan);  // pages without members
  w.check();
  CHECK(w.long_zones == 1);
  search_world turns(
      {.shape = coded, .page_tokens = 2, .dim = 20, .group = 5, .lengths = {4150}, .options = {.keep = 12}, .interleave = true});
  for (int d = 0; d < 20; ++d) turns.queries()[static_cast<std::size_t>(20 + d)] = 0;  // a head that has no say
  turns.check();
  CHECK(turns.long_zones == 1);
  search_world probed({.shape = coded, .page_tokens = 2, .lengths = {4150}, .options = {.keep = 20, .pages = {.probes = 600}}});
  probed.check();
  CHECK(probed.long_zones == 0);
}

TEST_CASE("proposals are the host's to the last page, for keys of more lines than pages in a group, any queries, heads and tokens") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const int dim : {136, 9}) {
    CAPTURE(dim);
    search_case c{.shape = {.block = 32}, .page_tokens = 2, .dim = dim, .group = dim == 9 ? 1 : 6, .heads = 2, .sink = 30};
    c.lengths = {4170, 700};
    c.new_tokens = 2;
    c.options.keep = 40;
    c.scale = dim == 9 ? -.3f : .3f;
    search_world w(c);
    for (float& q : w.queries()) q = normal(random);
    w.queries()[static_cast<std::size_t>(dim) + 3] = dim == 9 ? infinity : quiet_nan;
    if (dim == 136) w.queries()[static_cast<std::size_t>(2 * dim) + 5] = 1e36f;  // finite, but sums over codes would not be
    w.check(true);
    CHECK(w.long_zones == 4);
  }
}

TEST_CASE("misuse is refused") {
  page_search_call<bf16, page_budget> call;
  call.rows.key_dim = 577;
  unsigned ticket = 0;
  call.to.tickets = &ticket;
  CHECK_THROWS_AS(propose_pages(device{}, call), usage_error);
  call.rows.key_dim = 8;
  call.group = 129;
  CHECK_THROWS_AS(propose_pages(device{}, call), usage_error);
  call.group = 1;
  call.to.tickets = nullptr;
  CHECK_THROWS_AS(propose_pages(device{}, call), usage_error);
}
