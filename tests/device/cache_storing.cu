// Caches on the device that are saved and restored: their frames are those of a cache on the host, which each reads of the other, to the
 // bit.

#include "stored_twins.cuh"

#include <support/feed.hpp>

#include <kvx/cuda/storing.cuh>
#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::stored_twins;

using retrieving =
    spec<paged<bf16, stored_page, stored_cut>, sign_buckets<key_sketch{.balance = 32}>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;

}  // namespace

TEST_CASE("frames of device and host are the same bytes; what either restores goes on as it was") { check_frames<retrieving>(); }

TEST_CASE("a turn continues a sequence; layers come one by one") {
  storing_twins<retrieving> x;
  const sequence s = x.learned(x.a, x.there, 120), base = x.a.fork(x.there, s, 105), t = x.learned(x.b, x.here, 120);
  const auto turn = x.saved_there(s, {.first = 105, .chunk = 10});
  const sequence u = x.restored_there(turn, {.after = base});
  CHECK(snapshot(x.a, u) == snapshot(x.b, t));
  CHECK(x.a.length(base) == 105);

  const auto store = x.saved_there(s, {});
  auto r = x.a.on_device().restore_layers(x.there, *store, digest{});
  REQUIRE_MESSAGE(r.ok(), message(r.state()));
  REQUIRE(x.a.on_device().decode_layer(x.there, r).ok());
  CHECK(r.ready() == 1);
  {
    step step = x.a.begin(x.there, {{r.of(), 1}});
    append_all(x.a, x.there, step, tokens(900, 1));
    CHECK_THROWS_AS(x.a.commit(x.there, step), usage_error);
  }
  while (!r.done()) REQUIRE(x.a.on_device().decode_layer(x.there, r).ok());
  CHECK(snapshot(x.a, r.of()) == snapshot(x.b, t));
}

TEST_CASE("nothing is saved or restored in a capture, and the capture goes on") {
  storing_twins<retrieving> x;
  const sequence s = x.learned(x.a, x.there, 40);
  const auto store = x.saved_there(s, {});
  auto& c = x.a.on_device();
  auto r = c.restore_layers(x.there, *store, digest{});
  const auto counted = counts(x.a.stats());
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(x.stream.get(), cudaStreamCaptureModeGlobal));
  CHECK_THROWS_AS((void)c.save(x.there, s, *store, digest{}), usage_error);
  CHECK_THROWS_AS((void)c.restore(x.there, *store, digest{}), usage_error);
  CHECK_THROWS_AS((void)c.decode_layer(x.there, r), usage_error);
  cudaGraph_t graph = nullptr;
  check("cudaStreamEndCapture", cudaStreamEndCapture(x.stream.get(), &graph));
  (void)cudaGraphDestroy(graph);
  CHECK(counts(x.a.stats()) == counted);
  while (!r.done()) REQUIRE(c.decode_layer(x.there, r).ok());
  CHECK(snapshot(x.a, r.of()) == snapshot(x.a, s));
}
