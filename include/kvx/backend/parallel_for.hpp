#pragma once
// The one thing kvx asks of a thread pool: run numbered tasks and wait for them.

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace kvx {

/// A borrowed thread pool.
///
/// run         calls task(argument, i) once for every i in [0, tasks), on at most `threads` threads (0: its own choice), and returns
///             when all calls have; tasks never throw and never wait for each other
/// context     handed to run as it is; it must outlive every call that takes the struct
struct parallel_for {
  using task = void (*)(const void* argument, std::int64_t i);
  void (*run)(void* context, int threads, std::int64_t tasks, task call, const void* argument) = nullptr;
  void* context = nullptr;
};

// Named functions, not lambdas: nvcc loses the type of a lambda that becomes a function pointer here.
inline void run_serially(void*, int, std::int64_t tasks, parallel_for::task call, const void* argument) {
  for (std::int64_t i = 0; i < tasks; ++i) call(argument, i);
}

/// One task after the other, on the caller's thread.
inline parallel_for serial() { return {run_serially, nullptr}; }

#if defined(_OPENMP)
inline void run_on_openmp(void*, int threads, std::int64_t tasks, parallel_for::task call, const void* argument) {
  const int most = threads > 0 ? threads : omp_get_max_threads();
  [[maybe_unused]] const int team = tasks < most ? static_cast<int>(tasks) : most;
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (std::int64_t i = 0; i < tasks; ++i) call(argument, i);
}

/// The OpenMP runtime's threads.
inline parallel_for openmp() { return {run_on_openmp, nullptr}; }
#endif

// Internal linkage: translation units compiled with and without OpenMP may be linked together, and each keeps its own default.
static inline parallel_for default_parallel_for() {
#if defined(_OPENMP)
  return openmp();
#else
  return serial();
#endif
}

}  // namespace kvx
