#pragma once
// A parallel_for on plain std::threads: what a user hands in, and what ThreadSanitizer understands (it does not know OpenMP).

#include <kvx/backend/parallel_for.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvx::test {

/// Starts the threads anew for every call; tasks are taken in order, each by whichever thread is free.
inline parallel_for std_threads() {
  return {[](void*, int threads, std::int64_t tasks, parallel_for::task call, const void* argument) {
            std::atomic<std::int64_t> next{0};
            const auto work = [&] {
              for (std::int64_t i = next++; i < tasks; i = next++) call(argument, i);
            };
            const std::int64_t wanted = threads > 0 ? threads : 2;
            std::vector<std::thread> others;
            for (std::int64_t t = 1; t < std::min(wanted, tasks); ++t) others.emplace_back(work);
            work();
            for (std::thread& t : others) t.join();
          },
          nullptr};
}

}  // namespace kvx::test
