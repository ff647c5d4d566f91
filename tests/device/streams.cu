// Events, streams of one's own and graphs behave as the library counts on; on the stand-in for CUDA's runtime and on the real one.

#include "device_array.cuh"

#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/launch.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::test_stream;

__global__ void add(std::int64_t* x, std::int64_t y) { *x += y; }
__global__ void doubled(std::int64_t* to, const std::int64_t* from) { *to = 2 * *from; }

bool lazy() {
  const char* text = std::getenv("SIMT_LAZY");
  return text != nullptr && *text == '1';
}

}  // namespace

TEST_CASE("a stream that waits for an event sees what was before it, and one that does not need not") {
  const test_stream first;
  const own_stream second(0), third(0);
  const device a{.stream = first.get()}, b{.stream = second.get()}, c{.stream = third.get()};
  const device_array<std::int64_t> x(std::vector<std::int64_t>{1}), y(std::vector<std::int64_t>{0}), z(std::vector<std::int64_t>{0});
  event done(0);
  done.hold(b);  // nothing was recorded: nothing is waited for
  launch(a, {dim3(1), 1}, add, x.data(), 4);
  done.record(a.stream);
  launch(a, {dim3(1), 1}, add, x.data(), 100);
  done.hold(b);
  launch(b, {dim3(1), 1}, doubled, y.data(), static_cast<const std::int64_t*>(x.data()));
  if (lazy()) launch(c, {dim3(1), 1}, doubled, z.data(), static_cast<const std::int64_t*>(x.data()));
  if (lazy()) REQUIRE(cudaStreamSynchronize(c.stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(b.stream) == cudaSuccess);
  if (lazy()) {
    CHECK(y.read()[0] == 10);
    CHECK(z.read()[0] == 2);  // a forgotten wait shows
  }
  first.wait();
  CHECK(x.read()[0] == 105);
  done.synchronize();
}

TEST_CASE("a graph repeats what was captured, and waits for what an event stands behind when it is launched") {
  const test_stream main;
  const own_stream other(0);
  const device a{.stream = main.get()}, b{.stream = other.get()};
  const device_array<std::int64_t> x(std::vector<std::int64_t>{1}), y(std::vector<std::int64_t>{0});
  event done(0);
  CHECK_FALSE(is_capturing(a));
  REQUIRE(cudaStreamBeginCapture(a.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(is_capturing(a));
  CHECK_THROWS_AS(require_uncaptured(a), usage_error);
  done.hold(a);
  launch(a, {dim3(1), 1}, doubled, y.data(), static_cast<const std::int64_t*>(x.data()));
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(a.stream, &graph) == cudaSuccess);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 2);
  cudaGraphExec_t replay = nullptr;
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  main.wait();
  CHECK(y.read()[0] == 0);  // nothing has run
  for (const std::int64_t expected : {22, 42, 62}) {
    launch(b, {dim3(1), 1}, add, x.data(), 10);
    done.record(b.stream);
    REQUIRE(cudaGraphLaunch(replay, a.stream) == cudaSuccess);
    main.wait();
    CHECK(y.read()[0] == expected);
  }
  CHECK(cudaGraphExecDestroy(replay) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("a capture in which somebody waits or allocates is lost") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  for (const int what : {0, 1}) {
    REQUIRE(cudaStreamBeginCapture(exec.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    void* p = nullptr;
    const cudaError_t refused = what == 0 ? cudaStreamSynchronize(exec.stream) : cudaMalloc(&p, 64);
    CHECK(refused != cudaSuccess);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(exec.stream, &graph) != cudaSuccess);
    CHECK(graph == nullptr);
    (void)cudaGetLastError();
  }
  stream.wait();
}
