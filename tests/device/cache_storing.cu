// Caches on the device that are saved and restored: their frames are those of a cache on the host, which each reads of the other, to the
// bit.

#include "stored_twins.cuh"

#include <support/feed.hpp>
#include <support/small_calibration.hpp>

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/cuda/storing.cuh>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.cuh>
#include <kvx/transform/half_product.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::stored_twins;

using retrieving =
    spec<paged<bf16, stored_page, stored_cut>, sign_buckets<key_sketch{.balance = 32}>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;

/// A product unlike the tiles': a thread for each number.
__global__ void product_by_threads_kernel(half_product::shape s, two_halves x, const kvx::half* b, std::int64_t b_pitch, float* out,
                                          std::int64_t out_pitch) {
  const bool restores = s.way == half_product::direction::restore;
  for (std::int64_t at = threadIdx.x + std::int64_t{blockIdx.x} * blockDim.x; at < s.m * s.n; at += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t i = at / s.n, j = at % s.n;
    float sum = 0;
    for (std::int64_t k = s.k; k-- > 0;) {
      const std::int64_t left = restores ? k * x.pitch + i : i * x.pitch + k, right = restores ? k * b_pitch + j : j * b_pitch + k;
      sum += (to_float(x.high[left]) + to_float(x.low[left])) * to_float(b[right]);
    }
    out[restores ? i * out_pitch + j : j * out_pitch + i] = sum;
  }
}

/// It, counting the calls of each way.
struct counted_products {
  int projects = 0, restores = 0;

  static void run(void* context, const device& exec, const half_product::shape& s, const two_halves& x, const kvx::half* b,
                  std::int64_t b_pitch, float* out, std::int64_t out_pitch) {
    auto& count = *static_cast<counted_products*>(context);
    ++(s.way == half_product::direction::project ? count.projects : count.restores);
    launch(exec, {dim3(4), 64}, product_by_threads_kernel, s, x, b, b_pitch, out, out_pitch);
  }
};

using coded = stored_by<spec<paged<float, page_shape{.tokens = 16, .key_dim = 6, .value_dim = 4}>>, calibrated<kvtc_entropy>>;

/// A basis of unit vectors: every product is a sum of one number and zeros, and exact however it is made.
coded coded_by_units() {
  calibration c = small_calibration({2, 2, 6, 4}, whole_model(2, 2));
  for (auto* part : {&c.keys, &c.values}) {
    for (span_basis& b : *part) {
      for (std::size_t i = 0; i < b.basis.size(); ++i) b.basis[i] = round_to<kvx::half>(i % (b.mean.size() + 1) == 0 ? 1.0f : 0.0f);
    }
  }
  coded result;
  result.codec.model = std::make_shared<const calibrated_model>(std::move(c));
  result.codec.log2_step = -512;
  return result;
}

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

TEST_CASE("heads whose queries were never numbers are as unseen in the frames of a device as in the host's") {
  storing_twins<retrieving> x;
  const auto learn = [&](auto& c, const auto& exec) {
    const sequence s = c.open(exec);
    const auto ids = tokens(1, 90);
    step step = c.begin(exec, {{s, 90}});
    append_all(c, exec, step, ids);
    for (int layer = 0; layer < 4; ++layer) {
      auto q = rows_of<float>(ids, part::query, layer, 4, 24);
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = i / 24 % 4 >= 2 ? quiet_nan : q[i];  // of the second KV head
      c.observe(exec, step, layer, q.data());
    }
    c.commit(exec, step);
    return s;
  };
  const auto there = x.saved_there(learn(x.a, x.there), {}), here = x.saved_here(learn(x.b, x.here), {});
  CHECK(bytes_in(there) == bytes_in(here));
  CHECK(bytes_in(x.saved_there(x.restored_there(here), {})) == bytes_in(here));
}

TEST_CASE("the codec's products on a device are those that it is given: from equal coefficients on, equal bytes") {
  const geometry g{.layers = 2, .kv_heads = 2, .query_heads = 2, .max_tokens = 200, .max_sequences = 3};
  counted_products count;
  const coded spec = coded_by_units();
  coded given = spec;
  given.codec.device_product = {counted_products::run, &count};
  storing_twins<coded> x(g, spec), y(g, given);
  const sequence s = x.a.open(x.there), t = y.a.open(y.there);
  feed(x.a, x.there, s, tokens(1, 70));
  feed(y.a, y.there, t, tokens(1, 70));
  const auto tiles = x.saved_there(s, {.chunk = 15}), threads = y.saved_there(t, {.chunk = 15});
  CHECK(count.projects > 0);
  CHECK(count.restores == 0);
  CHECK(bytes_in(threads) == bytes_in(tiles));
  CHECK(snapshot(y.a, y.restored_there(tiles)) == snapshot(x.a, x.restored_there(tiles)));
  CHECK(count.restores > 0);
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
