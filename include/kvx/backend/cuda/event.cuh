#pragma once
// Points in the order of a stream, and a stream of one's own beside the caller's.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/status.cuh>
#include <kvx/backend/device.cuh>

#include <cuda_runtime.h>

#include <utility>

namespace kvx {

/// An event of one device. Moves.
class event {
 public:
  event() = default;
  explicit event(int ordinal) {
    const current_device here(ordinal);
    check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming));
  }
  event(event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), recorded_(std::exchange(other.recorded_, false)) {}
  event& operator=(event other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(recorded_, other.recorded_);
    return *this;
  }
  ~event() {
    if (handle_ != nullptr) (void)cudaEventDestroy(handle_);
  }

  /// Stands behind all work that was enqueued on the stream of `exec` so far.
  void record(const device& exec) {
    const current_device here(exec.ordinal);  // whose default stream it may be
    check("cudaEventRecord", cudaEventRecord(handle_, exec.stream));
    recorded_ = true;
  }

  /// Later work of the stream waits for the last record. In a graph it is the last record when the graph is launched.
  void hold(const device& exec) const {
    if (handle_ == nullptr) return;
    const current_device here(exec.ordinal);
    const unsigned flags = is_capturing(exec) ? cudaEventWaitExternal : cudaEventWaitDefault;
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(exec.stream, handle_, flags));
  }

  /// The calling thread waits for the last record.
  void synchronize() const {
    if (recorded_) check("cudaEventSynchronize", cudaEventSynchronize(handle_));
  }

 private:
  cudaEvent_t handle_ = nullptr;
  bool recorded_ = false;
};

/// A stream beside the caller's, which waits for nobody unless it is told to. Moves.
class own_stream {
 public:
  own_stream() = default;
  explicit own_stream(int ordinal) {
    const current_device here(ordinal);
    check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking));
  }
  own_stream(own_stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  own_stream& operator=(own_stream other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~own_stream() {
    if (handle_ != nullptr) (void)cudaStreamDestroy(handle_);  // what is enqueued still runs
  }

  cudaStream_t get() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

}  // namespace kvx
