#pragma once
// The host backend: whose threads run the work, and whose memory holds the caches.

#include <kvx/backend/memory.hpp>
#include <kvx/backend/parallel_for.hpp>
#include <kvx/core/check.hpp>

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <thread>

namespace kvx {

/// Execution on this machine's processors.
///
/// what        passed first to every call
/// threads     at most so many tasks run at once; 0: as many as `parallel` offers. Results do not depend on it.
/// parallel    runs tasks side by side: OpenMP where the translation unit is compiled with it, else one after the other;
///             hand in your own to use the threads of your program. Write host{...}, with braces, where units with and without OpenMP are
///             linked together: a plain `host exec;` may have either's
/// memory      where a cache takes its rows, columns and scratch from; it must outlive the cache, and is never null
/// index_ahead   of the execution that a cache is built with: so many layers of a step may be indexed beside the caller, on a thread of the
///             cache's own, while later layers compute; 0: all of them in commit. Results do not depend on it
struct host {
  int threads = 0;
  parallel_for parallel = default_parallel_for();
  std::pmr::memory_resource* memory = lazy_pages();
  int index_ahead = 0;
};

/// Calls body(i) for every i in [0, tasks), in any order and on any thread of `exec`; returns when all are done. body must not throw.
template <class Body>
void for_each_task(const host& exec, std::int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  if (tasks == 1 || exec.threads == 1 || exec.parallel.run == nullptr) {
    for (std::int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  exec.parallel.run(
      exec.parallel.context, exec.threads, tasks, [](const void* b, std::int64_t i) { (*static_cast<const Body*>(b))(i); }, &body);
}

/// Tasks that may run at once, each with scratch of its own.
inline int worker_count(const host& exec) {
  static const int machine = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return exec.threads > 0 ? exec.threads : machine;
}

/// The same execution with at most so many workers: scratch that was sized for them suffices.
inline host limited(const host& exec, int workers) {
  host fewer = exec;
  fewer.threads = std::min(worker_count(exec), workers);
  return fewer;
}

/// Throws a usage_error where an execution has no memory to take from.
inline void require_memory(const host& exec, call_site where) { require(exec.memory != nullptr, "host.memory is null", where); }

/// Memory of this backend; throws what the resource throws, and a usage_error where there is no resource.
inline memory_block allocate(const host& exec, std::int64_t bytes, call_site where = call_site::here()) {
  require_memory(exec, where);
  return memory_block(exec.memory, bytes);
}

}  // namespace kvx
