#pragma once
// Runs the threads of a CUDA block as fibers on one thread of the host: what kernels (simt.hpp) ask of the engine.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include <vector_types.h>

// CUDA's built-in variables, as real objects (macros would clash with cudaLaunchConfig_t's members).
// The engine sets threadIdx at every switch.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace simt {

inline constexpr std::size_t smem_max = 227 * 1024;  // of a block

struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct site {
  const char* file;
  int line;
};          // call site of a collective

enum class op : std::uint8_t {
  none,
  syncwarp,
  shfl_idx,
  shfl_up,
  shfl_down,
  shfl_xor,
  ballot,
  any,
  all,
  match_any,
  red_add,
  red_min_s,
  red_max_s,
  red_min_u,
  red_max_u,
  red_and,
  red_or,
  red_xor,
  call
};
enum class block_op : std::uint8_t { sync, count, all, any };

// Called from inside a kernel. Every lane named in `mask` must make the same call from the same site.
std::uint64_t warp_op(op kind, std::uint32_t mask, std::uint64_t value, std::int32_t arg, std::int32_t width, site at,
                      void (*fn)(void* const (&lanes)[32]) = nullptr);

struct fragments {  // of one lane, for a 16x8x16 product on the tensor cores
  float c[4];       // accumulator
  std::uint32_t a[4], b[2];
  bool bf16;        // a and b hold bf16, else half
};
void multiply_fragments(void* const (&lanes)[32]);     // what the warp_op of a product calls; `lanes` point at fragments

int block_barrier(block_op kind, int predicate, site at);
void yield();                                          // scheduling point (atomics, spins)
void fence();                                          // __threadfence: orders memory for the race detector
void* dynamic_shared() noexcept;                       // 128-byte aligned, poisoned at block start
[[noreturn]] void fail(const std::string& what);       // reports kernel misuse with block/thread ids

struct config {
  std::uint64_t seed = 0;        // 0: ascending thread order, 1: descending, 4 n + 3: warp by warp, otherwise random
  bool concurrent_blocks = false;// race detector only: no happens-before edge between blocks
  bool tolerate_exit = false;    // true: a thread may return while others still meet at a barrier or in a mask that
                                 // names it (legal since Volta, but mostly a mistake)
  bool poison = true;            // fill shared memory with 0xFF (NaN / -1) before every block
};
config& settings();                                    // initialised from SIMT_SEED, SIMT_CONCURRENT_BLOCKS

// Runs all blocks to completion; throws simt::error on misuse or deadlock.
void run_grid(dim3 grid, dim3 block, std::size_t smem, const std::function<void()>& body);

struct counters {
  std::uint64_t switches = 0, threads = 0, warp_ops = 0, barriers = 0, launches = 0;
};
counters& stats();

// For programs that look at what kernels do (traffic.cpp): the kernel that runs, null between kernels, and the allocation of device or
// page-locked memory that an address lies in, null for others. The stand-in for CUDA's runtime knows both.
struct memory_range {
  const char *begin = nullptr, *end = nullptr;
};
const void*& running_kernel();
memory_range allocation_of(const void* p);

}  // namespace simt
