#pragma once
// What the machine can do: the yardsticks of every speed metric. Compiled with -march=native -O3, apart from kvx.

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvx::bench {

/// Threads of the yardsticks: all cores.
int cores();

/// Reads `bytes` bytes with vector loads, each thread its own contiguous part; returns their sum so that nothing is left out.
std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes);

/// One product of two n x n float matrices by Eigen, all cores.
void eigen_sgemm(int n);

/// One product of an m x k and a k x n float matrix by Eigen, all cores.
void eigen_product(int m, int n, int k);

/// Eigen's version.
std::string eigen_version();

/// Share of the mapped bytes around `data` that lie in 2 MiB pages; -1 where the system does not say.
double large_page_share(const void* data);

}  // namespace kvx::bench
