// One fault that only a sanitizer sees, by its name on the command line; the test demands the sanitizer's report.

#include <cstdio>
#include <cstring>

namespace {

__global__ void overrun(int* cell, int past) {
  __shared__ int rows[32];
  rows[static_cast<int>(threadIdx.x) + past] = 1;
  *cell = rows[0];
}

/// By the last block, whose guards are those of the blocks before it.
__global__ void dynamic_overrun(int* cell, int past) {
  int* rows = static_cast<int*>(simt::dynamic_shared());
  rows[threadIdx.x] = 1;
  if (blockIdx.x + 1 == gridDim.x) rows[static_cast<int>(threadIdx.x) + past] = 2;
  *cell = rows[0];
}

__global__ void one_cell(int* cell) { *cell = static_cast<int>(threadIdx.x); }

template <class... P, class... A>
void run(void (*kernel)(P...), unsigned blocks, unsigned threads, A... arguments) {
  cudaLaunchConfig_t shape{};
  shape.gridDim = blocks;
  shape.blockDim = threads;
  shape.dynamicSmemBytes = threads * sizeof(int);
  if (cudaLaunchKernelEx(&shape, kernel, arguments...) != cudaSuccess) std::puts("the launch failed");
}

}  // namespace

int main(int argc, char** argv) {
  const char* fault = argc > 1 ? argv[1] : "";
  int* cell = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&cell), sizeof *cell) != cudaSuccess) return 1;
  if (!std::strcmp(fault, "shared_overrun")) run(overrun, 1, 32, cell, 1);
  if (!std::strcmp(fault, "dynamic_overrun")) run(dynamic_overrun, 3, 32, cell, 1);
  if (!std::strcmp(fault, "host_reads_device")) std::printf("%d\n", *cell);
  if (!std::strcmp(fault, "race")) run(one_cell, 1, 32, cell);
  std::puts("nothing noticed");
}
