// Uploads: pieces arrive where they belong, in the order of the stream, whatever the host does to its memory afterwards.

#include "device_array.cuh"

#include <kvx/backend/cuda/upload.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::test_stream;

std::vector<std::uint32_t> counted(std::size_t n, std::uint32_t first) {
  std::vector<std::uint32_t> x(n);
  std::iota(x.begin(), x.end(), first);
  return x;
}

}  // namespace

TEST_CASE("pieces of every size arrive, and nothing beside them changes") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  upload_ring ring;
  for (const std::size_t n : {1u, 3u, 127u, 1023u, 1024u, 1025u, 5000u}) {
    CAPTURE(n);
    device_array<std::uint32_t> to(n + 20);
    const auto a = counted(n, 1), b = counted(7, 900000);
    const upload_piece pieces[] = {
        {to.data() + 1, a.data(), static_cast<std::int64_t>(4 * n)}, {to.data(), nullptr, 0}, {to.data() + n + 5, b.data(), 28}};
    ring.enqueue(exec, pieces);
    stream.wait();
    std::vector<std::uint32_t> expected(n + 20, 0xffffffffu);
    std::copy(a.begin(), a.end(), expected.begin() + 1);
    std::copy(b.begin(), b.end(), expected.begin() + static_cast<std::ptrdiff_t>(n) + 5);
    CHECK(to.read() == expected);
  }
}

TEST_CASE("many uploads in flight: buffers are not touched before they have been read") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  upload_ring ring;
  constexpr std::uint32_t rounds = 23;
  device_array<std::uint32_t> to(rounds * 40);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    auto x = counted(40, 1000 * i);
    const upload_piece piece{to.data() + 40 * i, x.data(), 160};
    ring.enqueue(exec, {&piece, 1});
    x.assign(40, 7);  // the caller's memory is free again
  }
  stream.wait();
  const auto all = to.read();
  for (std::uint32_t i = 0; i < rounds; ++i) CHECK(all[40 * i + 39] == 1000 * i + 39);
}

TEST_CASE("an upload is refused while the stream is captured") {
  const test_stream stream;
  const device exec{.stream = stream.get()};
  upload_ring ring;
  device_array<std::uint32_t> to(4);
  const auto x = counted(4, 5);
  const upload_piece piece{to.data(), x.data(), 16};
  ring.enqueue(exec, {&piece, 1});
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK_THROWS_AS(ring.enqueue(exec, {&piece, 1}), usage_error);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);  // the capture has survived
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  stream.wait();
  CHECK(to.read() == x);
}
