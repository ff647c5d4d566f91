// Device memory that runs out at any allocation of any call leaves the cache as it was; two devices; what is refused.

#include "cache_on_host.cuh"
#include "failing_device_memory.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::counts, test::feed, test::observe_all, test::snapshot, test::survive, test::tokens;

using dense_only = spec<paged<float, page_shape{.tokens = 4, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}>>;
using slabs = spec<contiguous<bf16, page_shape{.tokens = 4, .key_dim = 9, .value_dim = 6}, zones{.sink = 2, .local = 5}>>;
using retrieving = spec<paged<float, page_shape{.tokens = 16, .key_dim = 24, .value_dim = 8}, zones{.sink = 2, .local = 10}>,
                        sign_buckets<key_sketch{.balance = 32}>, rsq_ip<4>>;

template <class Spec>
struct fixture {
  test::failing_device_memory memory;
  test::test_stream stream;
  device exec{.stream = stream.get(), .memory = &memory};
  geometry g{.layers = 3,
             .kv_heads = 2,
             .query_heads = 4,
             .max_tokens = 400,
             .max_sequences = 4,
             .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9, 2)},
             .rollback = 16};
  std::optional<test::cache_on_host<Spec>> c{std::in_place, exec, Spec{}, g};
};

}  // namespace

TEST_CASE_TEMPLATE("every call survives device memory that runs out", Spec, dense_only, slabs, retrieving) {
  fixture<Spec> x;
  auto& c = *x.c;
  const device& exec = x.exec;
  const sequence a = c.open(exec), b = c.open(exec);
  feed(c, exec, a, tokens(1, 30));
  feed(c, exec, b, tokens(100, 7));
  std::vector<sequence> seen = {a, b};
  const auto look = [&] {
    std::vector<std::vector<std::byte>> all;
    for (const sequence s : seen) all.push_back(snapshot(c, s));
    return std::tuple(all, counts(c.stats()));
  };
  std::optional<sequence> fork;
  survive(x.memory, "fork", look, [&] { fork = c.fork(exec, a); });
  seen.push_back(*fork);
  std::optional<step> step;
  const std::int64_t n = survive(x.memory, "begin", look, [&] { step = c.begin(exec, {{a, 50}, {*fork, 1}, {b, 40}}); });
  CHECK(n > 0);
  const auto ids = tokens(500, 91);
  append_all(c, exec, *step, ids);
  observe_all(c, exec, *step, ids);
  survive(x.memory, "attend", look, [&] { attend_all(c, exec, *step, ids, {.keep = 8}); });
  survive(x.memory, "commit", look, [&] { c.commit(exec, *step); });
  CHECK(c.length(a) == 80);
  step.reset();
  for (const sequence s : seen) c.close(exec, s);
  CHECK(c.stats().pages_used == 0);
  x.c.reset();
  CHECK(cudaStreamSynchronize(x.stream.get()) == cudaSuccess);
  CHECK(x.memory.blocks == 0);
}

TEST_CASE("a cache that does not fit is not built, and nothing stays") {
  fixture<retrieving> x;
  x.c.reset();
  for (std::int64_t n = 0; n < 50; ++n) {
    x.memory.until_failure = n;
    try {
      const cache<device, retrieving> built(x.exec, {}, x.g);
      x.memory.until_failure = -1;
      break;
    } catch (const std::bad_alloc&) {
      CHECK(x.memory.blocks == 0);
    }
  }
  CHECK(x.memory.blocks == 0);
}

TEST_CASE("an execution without memory is refused, by the caller's line") {
  fixture<retrieving> x;
  auto& c = x.c->on_device();
  device nowhere = x.exec;
  nowhere.memory = nullptr;
  const auto refused = [](auto&& call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("cache_exceptions.cu:"), usage_error);
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("device.memory is null"), usage_error);
  };
  const sequence a = c.open(x.exec);
  refused([&] { cache<device, retrieving>(nowhere, {}, x.g); });
  refused([&] { (void)c.begin(nowhere, {{a, 1}}); });
  step step = c.begin(x.exec, {{a, 1}});
  append_all(*x.c, x.exec, step, tokens(1, 1));
  refused([&] { c.commit(nowhere, step); });
  c.commit(x.exec, step);
  CHECK(c.length(a) == 1);
}

TEST_CASE("a step outlives its cache") {
  fixture<retrieving> x;
  std::optional<step> left;
  left = x.c->begin(x.exec, {{x.c->open(x.exec), 3}});
  x.c.reset();
  left.reset();
  CHECK(x.memory.blocks == 0);
}

TEST_CASE("a cache that another is assigned to gives back all that it had, behind its own work") {
  fixture<retrieving> x;
  {
    auto& c = x.c->on_device();
    step left = c.begin(x.exec, {{c.open(x.exec), 3}});
    feed(*x.c, x.exec, c.open(x.exec), tokens(1, 70));  // pages enter the zone, and are being encoded
    c = cache<device, retrieving>(x.exec, {}, x.g);
    CHECK_THROWS_AS(c.commit(x.exec, left), usage_error);
  }
  CHECK(x.c->stats().pages_used == 0);
  const sequence s = x.c->open(x.exec);
  feed(*x.c, x.exec, s, tokens(1, 70));
  CHECK(x.c->length(s) == 70);
  x.c.reset();
  CHECK(cudaStreamSynchronize(x.stream.get()) == cudaSuccess);
  CHECK(x.memory.blocks == 0);
}

TEST_CASE("the device of a call need not be the current one, and stays what it was") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  if (count < 2) return;
  for (const bool is_default : {false, true}) {
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    const test::test_stream stream;
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    const device exec{.stream = is_default ? nullptr : stream.get(), .ordinal = 1};
    test::cache_on_host<dense_only> c(exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = 1, .max_tokens = 40});
    const sequence s = c.open(exec);
    feed(c, exec, s, tokens(1, 9));
    CHECK(c.length(s) == 9);
    int now = -1;
    REQUIRE(cudaGetDevice(&now) == cudaSuccess);
    CHECK(now == 0);
  }
}

TEST_CASE_TEMPLATE("what must not stand in a capture is refused before anything changes, and the capture lives", Spec, dense_only, slabs,
                   retrieving) {
  fixture<Spec> x;
  auto& c = x.c->on_device();
  const sequence a = c.open(x.exec), b = c.open(x.exec);
  feed(*x.c, x.exec, a, tokens(1, 70));  // pages enter the zone, and are being encoded
  const auto rows = snapshot(*x.c, a);
  feed(*x.c, x.exec, b, tokens(100, 70));
  step step = c.begin(x.exec, {{b, 1}});
  append_all(*x.c, x.exec, step, tokens(200, 1));
  const auto look = [&] { return std::tuple(c.length(a), c.length(b), counts(c.stats())); };
  const auto before = look();
  REQUIRE(cudaStreamBeginCapture(x.stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const auto refused = [&](const char* what, auto&& call) {
    CAPTURE(what);
    CHECK_THROWS_AS(call(), usage_error);
    CHECK(look() == before);
  };
  refused("build", [&] { cache<device, Spec>(x.exec, {}, x.g); });
  refused("begin", [&] { (void)c.begin(x.exec, {{a, 1}}); });
  refused("commit", [&] { c.commit(x.exec, step); });
  refused("settle", [&] { c.settle(x.exec); });
  refused("truncate", [&] { c.truncate(x.exec, a, 66); });
  refused("close", [&] { c.close(x.exec, a); });
  if (std::is_same_v<Spec, slabs>) refused("fork", [&] { (void)c.fork(x.exec, a); });
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(x.stream.get(), &graph) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  c.commit(x.exec, step);
  CHECK(c.length(b) == 71);
  CHECK(snapshot(*x.c, a) == rows);
}

TEST_CASE("an audit on the device is refused") {
  fixture<dense_only> x;
  const sequence s = x.c->open(x.exec);
  step step = x.c->begin(x.exec, {{s, 1}});
  append_all(*x.c, x.exec, step, tokens(1, 1));
  attention_audit audit;
  CHECK_THROWS_AS(attend_all(*x.c, x.exec, step, tokens(1, 1), {.audit = &audit}), usage_error);
}
