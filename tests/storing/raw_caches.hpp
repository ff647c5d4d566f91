#pragma once
// Caches that are saved as they are, of every kind of layer, in pairs: what one saves the other restores.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace kvx::test::raw_caches {

inline constexpr zones raw_cut{.sink = 4, .local = 6};
template <class Layout>
using checked = cache<host, spec<Layout, checksum_index>>;
using raw_pages = checked<paged<bf16, page_shape{.tokens = 16, .key_dim = 7, .value_dim = 4}, raw_cut>>;
using raw_slabs = checked<contiguous<float, page_shape{.tokens = 4, .key_dim = 5, .value_dim = 6}, raw_cut>>;
using caches = std::tuple<raw_pages, raw_slabs>;
using plain = cache<host, spec<raw_pages::layout>>;  // layers of which come one by one

inline const geometry layers_that_differ{
    .layers = 4,
    .kv_heads = 2,
    .query_heads = 6,
    .max_tokens = 1800,
    .max_sequences = 6,
    .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9, 2), layer_kind::window(20)},
    .max_step_tokens = 80,
    .rollback = 16};

/// Two tokens more, attended to in every layer, and dropped again.
template <class Cache>
std::vector<float> probe(Cache& c, const host& exec, sequence s) {
  const std::vector<token> ids = tokens(9000, 2);
  step step = c.begin(exec, {{s, 2}});
  append_all(c, exec, step, ids);
  return attend_all(c, exec, step, ids);
}

template <class Cache>
struct pair_of {
  host exec = one_thread();
  Cache a{exec, {}, layers_that_differ};
  Cache b{exec, {}, layers_that_differ};
  memory_store store;

  sequence fed(Cache& c, std::int64_t n) {
    const sequence s = c.open(exec);
    for (std::int64_t at = 0; at < n; at += 70) feed(c, exec, s, tokens(static_cast<token>(1 + at), std::min<std::int64_t>(70, n - at)));
    return s;
  }
  void same(sequence s, sequence t) {
    CHECK(snapshot(a, s) == snapshot(b, t));
    CHECK(probe(a, exec, s) == probe(b, exec, t));
  }
};

}  // namespace kvx::test::raw_caches
