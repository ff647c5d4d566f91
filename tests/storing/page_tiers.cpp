// A cache of semantic pages in tiers is saved and restored: pages, codes and means of values are made anew from the rows, bit for bit.

#include "stored.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;

constexpr page_shape shape{.tokens = 8, .key_dim = 12, .value_dim = 10};
using tiered =
    cache<host, spec<paged<bf16, shape, zones{.sink = 16, .local = 16}>, dci_tree<dci_shape{.block = 32, .by = dci_shape::metric::keys}>,
                     rsq_ip<4, tiers{.value_bits = 2, .tail = true}>>>;

/// All columns of the retrieval zone, and what two more tokens attend to.
struct seen {
  std::vector<std::byte> columns;
  std::vector<float> outputs;
  friend bool operator==(const seen&, const seen&) = default;
};

seen look(tiered& c, const host& exec, sequence s) {
  seen result;
  constexpr auto all = tiered::spec_type::columns(shape);
  const std::int64_t first = tiered::zones.sink / shape.tokens, last = edge(tiered::zones, c.length(s), shape.tokens) / shape.tokens;
  for (std::size_t k = 0; k < all.size(); ++k) {
    for (std::int64_t j = first; all[k].block_bytes > 0 && j < last; ++j) {
      const std::byte* const block = c.column(0, static_cast<int>(k)).at(c.pages(0, s)[static_cast<std::size_t>(j)], 0);
      result.columns.insert(result.columns.end(), block, block + all[k].block_bytes);
    }
  }
  const std::vector<token> ids = tokens(9000, 2);
  step step = c.begin(exec, {{s, 2}});
  append_all(c, exec, step, ids);
  result.outputs = attend_all(c, exec, step, ids, {.keep = 6, .path = attend_options::route::retrieve});
  return result;
}

}  // namespace

TEST_CASE("what is restored attends like what was saved, and goes on like it") {
  const host exec = one_thread();
  const geometry sizes{.layers = 1,
                       .kv_heads = 1,
                       .query_heads = 2,
                       .max_tokens = 800,
                       .max_sequences = 3,
                       .kinds = {layer_kind::retrieve()},
                       .max_step_tokens = 300};
  for (const std::int64_t n : {40, 300}) {
    tiered a(exec, {}, sizes), b(exec, {}, sizes);
    memory_store store;
    const sequence s = a.open(exec);
    feed(a, exec, s, tokens(1, n));
    save_well(a, exec, s, store, {});
    const sequence t = restored_well(b, exec, store);
    CHECK(look(b, exec, t) == look(a, exec, s));
    a.truncate(exec, s, n - 12);
    b.truncate(exec, t, n - 12);
    feed(a, exec, s, tokens(600, 70));
    feed(b, exec, t, tokens(600, 70));
    CHECK(look(b, exec, t) == look(a, exec, s));
  }
}
