#pragma once
// Device memory in the order of a stream, from the caller's resource or CUDA's own pool.

#include <kvx/backend/cuda/status.cuh>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvx {

/// Where device memory comes from. Blocks start on multiples of 256 bytes.
///
/// allocate    memory that work enqueued on the stream from now on may use; throws where there is none
/// deallocate  work enqueued on the stream before may still use the memory; must not throw
class device_resource {
 public:
  virtual ~device_resource() = default;
  virtual void* allocate(std::size_t bytes, cudaStream_t stream) = 0;
  virtual void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept = 0;
};

/// The default: cudaMallocAsync, from the pool of the current device.
class stream_ordered_resource final : public device_resource {
 public:
  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    void* p = nullptr;
    check("cudaMallocAsync", cudaMallocAsync(&p, bytes, stream));
    return p;
  }
  void deallocate(void* p, std::size_t, cudaStream_t stream) noexcept override { (void)cudaFreeAsync(p, stream); }
};

/// The one instance of stream_ordered_resource; it lives as long as the program.
inline device_resource* stream_ordered_memory() {
  static stream_ordered_resource resource;
  return &resource;
}

/// Makes a device current for as long as it lives; nothing is called where it is current already.
class current_device {
 public:
  explicit current_device(int ordinal, call_site where = call_site::here()) {
    check("cudaGetDevice", cudaGetDevice(&before_), where);
    changed_ = before_ != ordinal;
    if (changed_) check("cudaSetDevice", cudaSetDevice(ordinal), where);
  }
  ~current_device() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  current_device(const current_device&) = delete;
  current_device& operator=(const current_device&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// A block of device memory that its owner frees, in the order of the stream that it was allocated on. Moves; contents undefined.
class device_block {
 public:
  device_block() = default;
  device_block(device_resource* resource, int ordinal, cudaStream_t stream, std::int64_t bytes)
      : resource_(resource), ordinal_(ordinal), stream_(stream), bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes <= 0) return;
    const current_device here(ordinal);
    data_ = static_cast<std::byte*>(resource->allocate(bytes_, stream));
  }
  device_block(device_block&& other) noexcept
      : resource_(other.resource_),
        ordinal_(other.ordinal_),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  device_block& operator=(device_block other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(ordinal_, other.ordinal_);
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~device_block() {
    if (data_ == nullptr) return;
    int before = 0;
    (void)cudaGetDevice(&before);
    if (before != ordinal_) (void)cudaSetDevice(ordinal_);
    resource_->deallocate(data_, bytes_, stream_);
    if (before != ordinal_) (void)cudaSetDevice(before);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_); }

  /// Frees the block in the order of another stream of its device, behind which all lies that used it.
  void free_behind(cudaStream_t stream) { stream_ = stream; }

 private:
  device_resource* resource_ = nullptr;
  int ordinal_ = 0;
  cudaStream_t stream_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvx
