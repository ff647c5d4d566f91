// Events, streams of one's own and graphs behave as the library counts on; on the stand-in for CUDA's runtime and on the real one.

#include "device_array.cuh"

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/event.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/cuda/device_scratch.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::test_stream;

__global__ void add(std::int64_t* x, std::int64_t y) { *x += y; }
/// Declares 12 KiB itself.
__global__ void declared_and_asked(std::int64_t* to, int asked) {
  __shared__ std::int64_t own[1536];
  auto* const more = dynamic_shared<std::int64_t>();
  for (int i = 0; i < 1536; ++i) own[i] = *to;
  for (int i = 0; i < asked; ++i) more[i] = i;
  *to = own[1535] + more[asked - 1];
}
__global__ void doubled(std::int64_t* to, const std::int64_t* from) { *to = 2 * *from; }

/// Remembers the stream in whose order a block was freed last.
class freed_memory final : public device_resource {
 public:
  cudaStream_t behind = nullptr;
  void* allocate(std::size_t bytes, cudaStream_t stream) override { return stream_ordered_memory()->allocate(bytes, stream); }
  void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept override {
    behind = stream;
    stream_ordered_memory()->deallocate(p, bytes, stream);
  }
};

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
  done.record(a);
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
    done.record(b);
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

TEST_CASE("what a kernel declares counts with what a launch asks for: together they may be more than 48 KiB") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  const device_array<std::int64_t> x(std::vector<std::int64_t>{1});
  for (const int kib : {35, 37, 40, 48})
    launch(exec, {dim3(1), 1, static_cast<std::size_t>(kib) * 1024}, declared_and_asked, x.data(), kib * 128);
  stream.wait();
  CHECK(x.read()[0] == 1 + (35 + 37 + 40 + 48) * 128 - 4);
}

TEST_CASE("a launch that asks for more shared memory than a block can have says how much, and how much there is") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  const device_array<std::int64_t> x(std::vector<std::int64_t>{1});
  int most = 0;
  REQUIRE(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess);
  CHECK(most > 48 * 1024);
  const auto asked = static_cast<std::size_t>(most) + 4096;
  const std::string says = std::to_string(asked) + " bytes of dynamic shared memory for a block of at most " + std::to_string(most);
  CHECK_THROWS_WITH_AS(launch(exec, {dim3(1), 1, asked}, declared_and_asked, x.data(), 1), doctest::Contains(says.c_str()), cuda_error);
  CHECK(cudaGetLastError() == cudaSuccess);
  stream.wait();
  CHECK(x.read()[0] == 1);
}

TEST_CASE("the default stream of a call is that of its device, whichever device is current") {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  if (count < 2) return;
  const device exec{.ordinal = 1};
  event done(1);
  done.record(exec);
  done.hold(exec);
  done.synchronize();
}

TEST_CASE("scratch that is outgrown is freed behind the stream that outgrows it") {
  const test_stream first;
  const own_stream second(0);
  freed_memory memory;
  const device a{.stream = first.get(), .memory = &memory}, b{.stream = second.get(), .memory = &memory};
  device_scratch scratch;
  scratch.reserve(a, 64, false);
  scratch.reserve(b, 128, false);
  CHECK(memory.behind == b.stream);
  for (const device& exec : {a, b}) REQUIRE(cudaStreamSynchronize(exec.stream) == cudaSuccess);
}
