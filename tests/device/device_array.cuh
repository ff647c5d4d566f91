#pragma once
// An array in device memory for tests: the host touches it through copies alone.

#include <kvx/backend/cuda/status.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvx::test {

/// `count` values, every byte 0xff before something is written: NaN in floats, -1 in integers.
template <class T>
class device_array {
 public:
  device_array() = default;
  explicit device_array(std::size_t count) : size_(count) {
    if (count == 0) return;
    check("cudaMalloc", cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    check("cudaMemsetAsync", cudaMemsetAsync(data_, 0xff, bytes(), nullptr));
    check("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  }
  explicit device_array(std::span<const T> values) : device_array(values.size()) { write(values); }
  explicit device_array(const std::vector<T>& values) : device_array(std::span<const T>(values)) {}
  device_array(device_array&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  device_array& operator=(device_array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~device_array() { (void)cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }

  void write(std::span<const T> values, std::size_t first = 0) {
    if (values.empty()) return;
    check("cudaMemcpy", cudaMemcpy(data_ + first, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  /// All values, once the work of every stream that was waited for has written them.
  std::vector<T> read() const {
    std::vector<T> values(size_);
    if (size_ > 0) check("cudaMemcpy", cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A stream for the tests of one case.
class test_stream {
 public:
  test_stream() { check("cudaStreamCreate", cudaStreamCreate(&stream_)); }
  test_stream(const test_stream&) = delete;
  test_stream& operator=(const test_stream&) = delete;
  ~test_stream() { (void)cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }
  void wait() const { check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace kvx::test
