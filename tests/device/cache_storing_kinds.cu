// Slabs, rows in host memory and coded chunks of caches on the device, saved and restored; see cache_storing.cu.

#include "failing_device_memory.cuh"
#include "stored_twins.cuh"

#include <support/feed.hpp>
#include <support/small_calibration.hpp>

#include <kvx/codec/frame.hpp>
#include <kvx/cuda/storing.cuh>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.cuh>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::stored_twins;

using slabs = spec<contiguous<kvx::half, stored_page, stored_cut>>;
using offloading = spec<paged<bf16, stored_page, stored_cut, placement::offload_uva>, sign_buckets<key_sketch{.balance = 32}>, rsq_ip<4>>;
using packed = spec<paged<float, stored_page, zones{.sink = 16, .local = 20}>, dci_tree<dci_shape{.block = 32}>>;

}  // namespace

TEST_CASE_TEMPLATE("frames of device and host are the same bytes; what either restores goes on as it was", Spec, slabs, offloading) {
  check_frames<Spec>();
}

TEST_CASE("rows that have moved to host memory are saved from there") {
  geometry g = layers_that_differ;
  g.near_tokens = 96;
  g.kinds[2] = layer_kind::dense();
  storing_twins<offloading> x(g);
  const sequence s = x.a.open(x.there), t = x.b.open(x.here);
  for (test::token at = 1; at < 200; at += 40) {
    feed(x.a, x.there, s, tokens(at, 40));
    feed(x.b, x.here, t, tokens(at, 40));
  }
  CHECK(x.a.stats().far_bytes > 0);
  CHECK(bytes_in(x.saved_there(s, {})) == bytes_in(x.saved_here(t, {})));
  // All restored rows must be near at once.
  const auto counted = counts(x.a.stats());
  const auto store = x.saved_there(s, {});
  CHECK_THROWS_AS((void)x.a.on_device().restore(x.there, *store, digest{}), capacity_error);
  CHECK(counts(x.a.stats()) == counted);
  const sequence u = x.restored_there(store, {.tokens = 60});
  CHECK(snapshot(x.a, u) == snapshot(x.b, x.b.fork(x.here, t, 60)));
}

TEST_CASE("rows of a layer that is decoded later come near before their columns are made") {
  geometry g = layers_that_differ;
  g.near_tokens = 96;
  storing_twins<offloading> x(g);
  const sequence s = x.learned(x.a, x.there, 60), t = x.learned(x.b, x.here, 60);
  const auto store = x.saved_there(s, {});
  x.a.close(x.there, s);
  auto r = x.a.on_device().restore_layers(x.there, *store, digest{});
  REQUIRE_MESSAGE(r.ok(), message(r.state()));
  const sequence other = x.a.open(x.there);
  feed(x.a, x.there, other, tokens(500, 40));
  CHECK(x.a.stats().far_bytes > 0);
  while (!r.done()) REQUIRE(x.a.on_device().decode_layer(x.there, r).ok());
  CHECK(snapshot(x.a, r.of()) == snapshot(x.b, t));
}

TEST_CASE("a turn of semantic pages is packed without the queries of the sequence whose last page it copies") {
  geometry g = layers_that_differ;
  g.kinds[2] = layer_kind::dense();
  storing_twins<packed> x(g);
  const sequence s = x.learned(x.a, x.there, 100), t = x.learned(x.b, x.here, 100);
  const auto turn = x.saved_there(s, {.first = 42});
  const sequence u = x.restored_there(turn, {.after = s}), v = x.restored_here(turn, {.after = t});
  CHECK(snapshot(x.a, u) == snapshot(x.b, v));
  CHECK(snapshot(x.a, u) != snapshot(x.a, s));
}

namespace {

constexpr page_shape coded_page{.tokens = 16, .key_dim = 6, .value_dim = 4};
template <class Chain>
using coded = stored_by<spec<paged<float, coded_page>>, calibrated<Chain>>;

void embed(void*, std::span<const std::int32_t> ids, float* out) {
  for (const std::int32_t id : ids) {
    for (int i = 0; i < 6; ++i) *out++ = test::component(static_cast<test::token>(id), test::part::query, 0, 0, i);
  }
}

/// All rows that a next query sees, as floats: K and V of every layer and head.
template <class Cache>
std::vector<float> rows_in(const Cache& c, sequence s) {
  std::vector<float> all;
  const std::int64_t n = c.length(s);
  for (int layer = 0; layer < 4; ++layer) {
    const auto rows = c.view(layer);
    const auto pages = c.pages(layer, s);
    for (std::int64_t t = 0; t < n; ++t) {
      if (layer % 2 == 1 && t >= 3 && t + 40 <= n) continue;
      const std::int64_t page = pages[static_cast<std::size_t>(t / 16)];
      for (int h = 0; h < 2; ++h) {
        all.insert(all.end(), rows.key.at(page, h, t % 16), rows.key.at(page, h, t % 16) + 6);
        all.insert(all.end(), rows.value.at(page, h, t % 16), rows.value.at(page, h, t % 16) + 4);
      }
    }
  }
  return all;
}

/// The means that a frame keeps of its text.
std::vector<std::vector<std::byte>> means_in(const std::unique_ptr<memory_store>& store) {
  const std::vector<std::byte> frame = bytes_in(store);
  frame_view view;
  REQUIRE(check_frame(frame, view).ok());
  std::vector<std::vector<std::byte>> means;
  for (const frame_section& s : view.sections) {
    const auto* const first = frame.data() + s.offset;
    if (s.kind == section_kind::mean) means.emplace_back(first, first + s.bytes);
  }
  return means;
}

double apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

}  // namespace

TEST_CASE_TEMPLATE("chunks that either codes, both restore alike", Chain, kvtc_entropy, kvtc_faithful<rans>) {
  const geometry g{.layers = 4,
                   .kv_heads = 2,
                   .query_heads = 2,
                   .max_tokens = 800,
                   .max_sequences = 6,
                   .kinds = {layer_kind::dense(), layer_kind::window(40, 3), layer_kind::dense(), layer_kind::window(40, 3)},
                   .rollback = 16};
  coded<Chain> spec;
  spec.codec.model =
      std::make_shared<const calibrated_model>(test::small_calibration({4, 2, 6, 4}, {{{0, 2}, 0, 2}, {{1}, 0, 1}, {{1}, 1, 1}}, 3));
  spec.codec.log2_step = -512;
  spec.codec.embeddings = {embed, nullptr, 6, 1 << 24};
  storing_twins<coded<Chain>> x(g, spec);
  const std::int64_t n = 150;
  std::vector<std::int32_t> ids(n);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(100 + i);
  const sequence s = x.a.open(x.there), t = x.b.open(x.here);
  feed(x.a, x.there, s, tokens(1, n));
  feed(x.b, x.here, t, tokens(1, n));
  const std::vector<float> exact = rows_in(x.b, t);
  const save_options options{.token_ids = ids, .chunk = 25, .own_mean_from = 100};  // of layers 0 and 2
  const auto there = x.saved_there(s, options), here = x.saved_here(t, options);
  // Symbols at the edge of a bin may fall to either side.
  CHECK(std::abs(std::ssize(bytes_in(there)) - std::ssize(bytes_in(here))) < 80);
  CHECK(means_in(there).size() == (std::is_same_v<Chain, kvtc_entropy> ? 2 : 0));
  CHECK(means_in(there) == means_in(here));
  for (const auto* store : {&there, &here}) {
    const sequence u = x.restored_there(*store), v = x.restored_here(*store);
    const std::vector<float> found = rows_in(x.a, u), expected = rows_in(x.b, v);
    CHECK(apart(found, expected) < 2e-5);  // sums of 24 terms of up to 6 in another order
    CHECK(apart(found, exact) < 1.5);
    CHECK(apart(found, exact) > .05);
    x.a.close(x.there, u);
    x.b.close(x.here, v);
  }
  const std::vector<float> part = rows_in(x.a, x.restored_there(there, {.tokens = 141}));
  CHECK(apart(part, rows_in(x.b, x.restored_here(there, {.tokens = 141}))) < 2e-5);
  // Pages of a fixed size are made by the host, and opened here.
  if constexpr (std::is_same_v<Chain, kvtc_entropy>) {
    save_options fixed = options;
    fixed.fixed_ratio = 5;
    const auto pages = x.saved_there(s, fixed);
    CHECK(bytes_in(pages) == bytes_in(x.saved_here(t, fixed)));
    CHECK(apart(rows_in(x.a, x.restored_there(pages)), rows_in(x.b, x.restored_here(pages))) < 2e-5);
  }
}

TEST_CASE("device memory that runs out while a sequence is saved or restored leaves no trace") {
  failing_device_memory memory;
  coded<kvtc_entropy> spec;
  spec.codec.model = std::make_shared<const calibrated_model>(small_calibration({4, 2, 6, 4}, whole_model(4, 2)));
  storing_twins<coded<kvtc_entropy>> x({.layers = 4, .kv_heads = 2, .query_heads = 2, .max_tokens = 200, .max_sequences = 4}, spec,
                                       &memory);
  const sequence s = x.a.open(x.there);
  feed(x.a, x.there, s, tokens(1, 60));
  memory_store store;
  const auto rows = snapshot(x.a, s);
  const auto look = [&] { return std::pair(snapshot(x.a, s), counts(x.a.stats())); };
  status state;
  survive(
      memory, "save", look, [&] { state = x.a.on_device().save(x.there, s, store, digest{}, {.chunk = 15, .own_mean_from = 20}); }, true);
  CHECK(state.ok());
  survive(
      memory, "restore", look, [&] { state = x.a.on_device().restore(x.there, store, digest{}).state; }, true);
  CHECK(state.ok());
  CHECK(snapshot(x.a, s) == rows);
}
