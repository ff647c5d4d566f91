// The engine runs kernels as a GPU would, under any order of threads, and reports the faults that a GPU would hide.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr unsigned all_lanes = 0xffffffffu;

/// Memory of the device, as the host must use it: through copies.
template <class T>
class device_array {
 public:
  explicit device_array(const std::vector<T>& values) : size_(values.size()) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~device_array() { cudaFree(data_); }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;

  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    REQUIRE(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

template <class... P, class... A>
cudaError_t run(void (*kernel)(P...), unsigned blocks, unsigned threads, A... arguments) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = blocks;
  shape.blockDim = threads;
  return cudaLaunchKernelEx(&shape, kernel, arguments...);
}

__global__ void warp_sums(const int* x, int* sums) {
  int sum = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(all_lanes, sum, step);
  if (threadIdx.x % 32 == 0) sums[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = sum;
}

template <bool with_barrier>
__global__ void neighbours(const int* x, int* y) {
  __shared__ int rows[64];
  rows[threadIdx.x] = x[threadIdx.x];
  if (with_barrier) __syncthreads();
  y[threadIdx.x] = rows[(threadIdx.x + 1) % 64];
}

/// Every warp reads what the other one has written, and much later overwrites its own.
template <bool with_barrier>
__global__ void reused(const int* x, int* y) {
  __shared__ int rows[64];
  rows[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = rows[(threadIdx.x + 32) % 64];
  if (with_barrier) __syncthreads();
  for (int i = 0; i < 40; ++i) __syncwarp();
  rows[threadIdx.x] = -1;
}

__global__ void histogram(const int* x, int* counts) { atomicAdd(&counts[x[blockIdx.x * blockDim.x + threadIdx.x] % 7], 1); }

std::vector<int> numbers(int n) {
  std::vector<int> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 1);
  return x;
}

std::vector<int> result_of(void (*kernel)(const int*, int*)) {
  const device_array<int> x(numbers(64)), y(std::vector<int>(64, 0));
  REQUIRE(run(kernel, 1, 64, x.data(), y.data()) == cudaSuccess);
  return y.read();
}

}  // namespace

TEST_CASE("a shuffle tree sums every warp of every block") {
  const device_array<int> x(numbers(256)), sums(std::vector<int>(8, 0));
  REQUIRE(run(warp_sums, 2, 128, x.data(), sums.data()) == cudaSuccess);
  const auto got = sums.read();
  for (int warp = 0; warp < 8; ++warp) CHECK(got[static_cast<std::size_t>(warp)] == 32 * (32 * warp) + 32 * 33 / 2);
}

TEST_CASE("atomics of all blocks arrive") {
  const device_array<int> x(numbers(700)), counts(std::vector<int>(7, 0));
  REQUIRE(run(histogram, 7, 100, x.data(), counts.data()) == cudaSuccess);
  CHECK(counts.read() == std::vector<int>(7, 100));
}

TEST_CASE("shared memory behind a barrier is seen in every order; without one, some order shows the fault") {
  std::vector<int> expected = numbers(64);
  expected.erase(expected.begin());
  expected.push_back(1);
  const auto seed = simt::settings().seed;
  int wrong = 0;
  for (std::uint64_t order = 0; order < 4; ++order) {
    simt::settings().seed = order;
    CHECK(result_of(neighbours<true>) == expected);
    wrong += result_of(neighbours<false>) != expected;
  }
  simt::settings().seed = seed;
  CHECK(wrong > 0);
}

TEST_CASE("a warp that is far ahead of another shows where a barrier is missing") {
  std::vector<int> expected = numbers(64);
  std::rotate(expected.begin(), expected.begin() + 32, expected.end());
  const auto seed = simt::settings().seed;
  for (std::uint64_t order = 0; order < 8; ++order) {
    simt::settings().seed = order;
    CHECK(result_of(reused<true>) == expected);
    if (order % 4 == 3) CHECK(result_of(reused<false>) != expected);
  }
  simt::settings().seed = seed;
}

TEST_CASE("misuse is reported with its place, not survived") {
  const auto two_barriers = [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  const auto one_stays_away = [] {
    if (threadIdx.x != 5) __syncthreads();
  };
  const auto a_lane_has_left = [] {
    if (threadIdx.x != 5) __shfl_sync(all_lanes, 1, 0);
  };
  const auto not_invited = [] { __shfl_sync(1u, 1, 0); };
  CHECK_THROWS_WITH_AS(simt::run_grid(1, 64, 0, two_barriers), doctest::Contains("divergent barrier"), simt::error);
  CHECK_THROWS_WITH_AS(simt::run_grid(1, 64, 0, one_stays_away), doctest::Contains("engine_test.cpp"), simt::error);
  CHECK_THROWS_WITH_AS(simt::run_grid(1, 32, 0, a_lane_has_left), doctest::Contains("names lanes that have returned"), simt::error);
  CHECK_THROWS_WITH_AS(simt::run_grid(1, 32, 0, not_invited), doctest::Contains("not in its own mask"), simt::error);
}

TEST_CASE("a lazy stream runs nothing before the host waits") {
  const char* lazy = std::getenv("SIMT_LAZY");
  const device_array<int> x(numbers(32)), sums(std::vector<int>(1, 0));
  int copy = 0;
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  cudaLaunchConfig_t shape{};
  shape.gridDim = 1;
  shape.blockDim = 32;
  shape.stream = stream;
  const int* const from = x.data();
  int* const to = sums.data();
  REQUIRE(cudaLaunchKernelEx(&shape, warp_sums, from, to) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(&copy, to, sizeof copy, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  if (lazy && *lazy == '1') CHECK(copy == 0);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(copy == 32 * 33 / 2);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}
