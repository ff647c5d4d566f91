#pragma once
// Ratios of times that hold from one machine to the next: runs of all contestants alternate, and medians are compared.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace kvx::bench {

/// Seconds of one call.
inline double seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.size() % 2 != 0 ? x[x.size() / 2] : (x[x.size() / 2 - 1] + x[x.size() / 2]) / 2;
}

/// Median seconds of each contestant over `rounds` rounds in which each runs once, after one round that does not count.
inline std::vector<double> alternate(const std::vector<std::function<void()>>& contestants, int rounds) {
  std::vector<std::vector<double>> times(contestants.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const double t = seconds(contestants[i]);
      if (round >= 0) times[i].push_back(t);
    }
  }
  std::vector<double> medians;
  for (auto& t : times) medians.push_back(median(std::move(t)));
  return medians;
}

}  // namespace kvx::bench
