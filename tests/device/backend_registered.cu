// Page-locked memory in pieces: kernels read and write across pieces, and a piece that is refused leaves nothing behind.

#include "device_array.cuh"

#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/cuda/registered.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace {

using namespace kvx;

__global__ void increase(std::uint32_t* x, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 128 + threadIdx.x;
  if (i < n) x[i] += static_cast<std::uint32_t>(i);
}

}  // namespace

TEST_CASE("kernels work on registered memory in place, across its pieces") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  registered_memory first(0, 3 << 20, call_site::here(), 1 << 20);
  registered_memory memory;
  memory = std::move(first);
  auto* const x = reinterpret_cast<std::uint32_t*>(memory.data());
  const std::int64_t from = ((1 << 20) - 600) / 4, n = 1000;  // around the end of the first piece
  std::memset(x, 0, 3 << 20);
  launch(exec, {dim3(8), 128}, increase, x + from, n);
  stream.wait();
  bool right = true;
  for (std::int64_t i = 0; i < n; ++i) right = right && x[from + i] == static_cast<std::uint32_t>(i);
  CHECK(right);
  CHECK((x[from - 1] == 0 && x[from + n] == 0));
}

#ifndef __CUDACC__  // a device cannot be told to refuse
TEST_CASE("a piece that is refused: what was granted is said and given back, and no later call fails") {
  const int before = simt::registered_ranges();
  for (int n = 0; n < 3; ++n) {
    simt::registrations_until_failure = n;
    try {
      const registered_memory memory(0, 3 << 20, call_site::here(), 1 << 20);
      FAIL("was granted");
    } catch (const capacity_error& e) {
      CHECK(e.needed() == 3 << 20);
      CHECK(e.free() == std::int64_t{n} << 20);
    }
    CHECK(simt::registered_ranges() == before);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  {
    const registered_memory memory(0, 3 << 20, call_site::here(), 1 << 20);
    CHECK(simt::registered_ranges() == before + 3);
  }
  CHECK(simt::registered_ranges() == before);
}
#endif
