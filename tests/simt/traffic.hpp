#pragma once
// Counts the bytes that kernels ask of global memory: every load, store and atomic of every thread, told by the compiler's instrumentation.

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace traffic {

/// Bytes of one kernel in one named range of memory.
///
/// requested   by all warps: what the lanes of a warp ask for with one instruction, each byte once, however many lanes ask for it. Lanes
///             are matched by the instruction and by how often each has executed it in its block
/// read, written   different bytes of memory that some thread reads, or writes
struct bytes {
  std::uint64_t requested = 0, requested_reads = 0, read = 0, written = 0;

  std::uint64_t distinct() const { return read + written; }
};

/// What was counted: by kernel, without its arguments, and range, "" for memory without a name.
using table = std::map<std::string, std::map<std::string, bytes>>;

/// Names [begin, begin + size) of device memory.
void name(const void* begin, std::int64_t size, const std::string& what);

void start();
table stop();

}  // namespace traffic
