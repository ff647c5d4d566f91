#pragma once
// Whether there is a GPU, and times by its events.

#include <kvx/backend/cuda/status.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace kvx::bench {

/// False, and says so, where there is no GPU that this program can run on.
inline bool device_is_there() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return true;
  std::printf("# no CUDA device here (cudart error %d)\n", static_cast<int>(status));
  return false;
}

/// Seconds between two points of a stream.
class stopwatch {
 public:
  stopwatch() {
    check("cudaEventCreate", cudaEventCreate(&begin_));
    check("cudaEventCreate", cudaEventCreate(&end_));
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }

  /// Median of `rounds` runs, after three that do not count.
  template <class Run>
  double seconds(cudaStream_t stream, int rounds, const Run& run) {
    std::vector<double> times;
    for (int i = -3; i < rounds; ++i) {
      check("cudaEventRecord", cudaEventRecord(begin_, stream));
      run();
      check("cudaEventRecord", cudaEventRecord(end_, stream));
      check("cudaEventSynchronize", cudaEventSynchronize(end_));
      float ms = 0;
      check("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin_, end_));
      if (i >= 0) times.push_back(ms * 1e-3);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[static_cast<std::size_t>(rounds / 2)];
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace kvx::bench
