// What the device finds of semantic pages is what the host finds, token for token, where sums of logits are exact.

#include <kvx/attend/cuda/page_call.cuh>
#include <kvx/index/cuda/page_search.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "page_search_case.cuh"

using namespace kvx;
using test::search_world;

namespace {

using ranking = dci_shape::ranking;

}  // namespace

TEST_CASE("pages found by means and members are those of the host, for budgets from one page to all") {
  for (const std::int64_t keep : {0, 8, 40, 200, 600, 5000}) {
    CAPTURE(keep);
    search_world({.options = {.keep = keep}, .seed = static_cast<unsigned>(keep + 1)}).check();
  }
}

TEST_CASE("groups of 1 to 16 heads, several KV heads and new tokens, each rule, with residents and without") {
  for (const int group : {1, 4, 5, 16}) {
    CAPTURE(group);
    search_world({.group = group, .lengths = {300}, .seed = static_cast<unsigned>(group)}).check();
  }
  search_world({.heads = 3, .lengths = {380, 90}, .new_tokens = 3, .residents = false}).check();
  for (const auto by : {group_rule::kind::mean, group_rule::kind::max}) search_world({.lengths = {300}, .rule = {by}}).check();
}

TEST_CASE("so many pages whatever is kept, so many looked at, by means alone, whole zones of short sequences") {
  search_world({.options = {.keep = 40, .pages = {.pages = 2}}}).check();
  for (const int probes : {1, 9, 1000}) search_world({.options = {.keep = 40, .pages = {.probes = probes}}}).check();
  search_world({.shape = {.block = 32, .rank = ranking::mean_key}}).check();
  search_world({.whole_below = 500}).check();
  search_world({.shape = {.block = 64}, .page_tokens = 16, .dim = 9, .sink = 0, .options = {.keep = 64}}).check();
}

TEST_CASE("heads take turns, each page at its first, by every ranking; two levels of means") {
  for (const ranking rank : {ranking::mean_then_member, ranking::mean_key, ranking::two_level_means}) {
    for (const int group : {1, 5}) {
      CAPTURE(static_cast<int>(rank));
      CAPTURE(group);
      search_world({.shape = {.block = 32, .rank = rank}, .group = group, .interleave = true}).check();
    }
  }
  search_world({.group = 9, .options = {.keep = 200, .pages = {.probes = 7}}, .interleave = true}).check();
  for (const std::int64_t keep : {8, 200, 600}) {
    for (const int probes : {0, 1, 9}) {
      CAPTURE(keep);
      CAPTURE(probes);
      const page_options options{.keep = keep, .pages = {.probes = probes}};
      search_world({.shape = {.block = 64, .rank = ranking::two_level_means}, .heads = 2, .options = options}).check();
    }
  }
  search_world({.shape = {.block = 64, .rank = ranking::two_level_means}, .page_tokens = 16, .dim = 9, .sink = 0, .options = {.keep = 64}})
      .check();
}

TEST_CASE("more pages are looked at where the next promises much, in long zones") {
  for (const unsigned seed : {3u, 4u}) {
    search_world w({.group = 2, .lengths = {2400}, .options = {.keep = 24}, .seed = seed});
    w.check();
    CHECK(*w.sizes.rbegin() == 24);
  }
}

TEST_CASE("a beam through the tree comes to the tokens of the host's, from one token wide to all") {
  const dci_shape tree{.block = 32, .rank = ranking::best_member, .first_promotion = 150};
  for (const int beam : {1, 3, 0, 9, 1 << 20}) {
    CAPTURE(beam);
    search_world w({.shape = tree, .lengths = {680, 300, 100, 30}, .options = {.keep = 40, .pages = {.beam = beam}}, .seed = 5});
    w.check();
    CHECK(*w.sizes.rbegin() == 40);
  }
  search_world({.shape = tree, .group = 6, .heads = 2, .lengths = {400}, .new_tokens = 2, .options = {.keep = 24, .pages = {.beam = 2}}})
      .check();
  for (const auto by : {group_rule::kind::mean, group_rule::kind::max})
    search_world({.shape = tree, .lengths = {300}, .options = {.keep = 40, .pages = {.beam = 2}}, .rule = {by}}).check();
  search_world({.shape = tree, .dim = 9, .sink = 0, .lengths = {9000}, .options = {.keep = 64, .pages = {.beam = 4}}}).check();
  search_world({.shape = {.block = 32, .rank = ranking::best_member, .first_promotion = 1}, .lengths = {300}}).check();  // no level 1
}

TEST_CASE("of the children of a beam composite indices propose those of the host's, equal ones by position, at every level") {
  const auto tree = [](int simple, int composite) {
    return dci_shape{.block = 32, .rank = ranking::best_member, .first_promotion = 250, .simple = simple, .composite = composite};
  };
  for (const int nearest : {1, 6, 40, 1000}) {
    CAPTURE(nearest);
    const page_options options{.keep = 24, .pages = {.beam = 8, .nearest = nearest}};
    search_world({.shape = tree(1, 1), .lengths = {680, 100, 30}, .options = options, .seed = 8}).check();
    search_world({.shape = tree(2, 3), .dim = 9, .group = 5, .heads = 2, .sink = 0, .lengths = {400}, .new_tokens = 2, .options = options})
        .check();
  }
  search_world alike({.shape = tree(1, 2), .lengths = {500}, .options = {.keep = 24, .pages = {.beam = 1 << 20, .nearest = 9}}});
  for (std::int64_t t = 40; t < 460; t += 3) std::fill_n(alike.key(0, t), 16, round_to<bf16>(t % 2 == 0 ? quiet_nan : 2.0f));
  alike.check();
  std::fill(alike.queries().begin(), alike.queries().end(), 0.0f);
  alike.check();
  alike.queries()[2] = infinity;
  alike.check();
  search_world({.shape = tree(2, 2), .lengths = {4500}, .options = {.keep = 64, .pages = {.beam = 200, .nearest = 300}}}).check();
}

TEST_CASE("keys of NaN are never found, nor pages that hold nothing else; queries of NaN and infinity find no page") {
  search_world w({.lengths = {500}});
  for (std::int64_t t = 40; t < 460; ++t) {
    if (t % 3 == 0 || (t > 90 && t < 200)) std::fill_n(w.key(0, t), 16, round_to<bf16>(t % 2 == 0 ? quiet_nan : infinity));
  }
  w.check();
  for (const float x : {quiet_nan, infinity}) {
    search_world of_nothing({.lengths = {500}});
    of_nothing.queries()[2] = x;
    of_nothing.check();
  }
  search_world zeros({.lengths = {500}});  // all pages are worth the same: the first ones are taken
  std::fill(zeros.queries().begin(), zeros.queries().end(), 0.0f);
  zeros.check();
  search_world in_tree({.shape = {.block = 32, .rank = ranking::best_member, .first_promotion = 150}, .lengths = {500}});
  for (std::int64_t t = 40; t < 460; t += 3) std::fill_n(in_tree.key(0, t), 16, round_to<bf16>(t % 2 == 0 ? quiet_nan : infinity));
  in_tree.queries()[2] = infinity;
  in_tree.check();
}

TEST_CASE("misuse is refused") {
  page_search_call<bf16, page_budget> call;
  call.rows.key_dim = 8;
  call.group = 129;
  CHECK_THROWS_AS(search_pages(device{}, call), usage_error);
  call.group = 1;
  for (const ranking rank : {ranking::coded_member, ranking::best_member}) {
    call.index.rank = rank;
    CHECK_THROWS_AS(search_pages(device{}, call), usage_error);
  }
  call.index.rank = ranking::mean_key;
  call.how.interleave = true;
  call.group = 128;
  call.to.found_pitch = 1 << 28;
  CHECK_THROWS_AS(search_pages(device{}, call), usage_error);
}
