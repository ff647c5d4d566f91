#pragma once
// The host backend: whose threads run the work, and whose memory holds the caches.

#include <kvx/backend/memory.hpp>
#include <kvx/backend/parallel_for.hpp>

#include <cstdint>
#include <memory_resource>

namespace kvx {

/// Execution on this machine's processors.
///
/// what        passed first to every call; `device` (kvx.cuh) is the other backend
/// threads     at most so many tasks run at once; 0: as many as `parallel` offers. Results do not depend on it.
/// parallel    runs tasks side by side: OpenMP where the translation unit is compiled with it, else one after the other;
///             hand in your own to use the threads of your program
/// memory      where a cache takes its rows, columns and scratch from
struct host {
  int threads = 0;
  parallel_for parallel = default_parallel_for();
  std::pmr::memory_resource* memory = lazy_pages();
};

/// Calls body(i) for every i in [0, tasks), in any order and on any thread of `exec`; returns when all are done. body must not throw.
template <class Body>
void for_each_task(const host& exec, std::int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  if (tasks == 1 || exec.threads == 1) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  exec.parallel.run(
      exec.parallel.context, exec.threads, tasks, [](const void* b, std::int64_t i) { (*static_cast<const Body*>(b))(i); }, &body);
}

/// Memory of this backend; throws what the resource throws.
inline memory_block allocate(const host& exec, std::int64_t bytes) { return memory_block(exec.memory, bytes); }

}  // namespace kvx
