#include "machine.hpp"

#include <Eigen/Dense>

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace kvx::bench {

int cores() { return omp_get_max_threads(); }

std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes) {
  const std::int64_t parts = cores(), words = bytes / 8;
  std::uint64_t total = 0;
#pragma omp parallel for reduction(+ : total) schedule(static, 1)
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::byte* const first = data + words * part / parts * 8;
    const std::int64_t count = words * (part + 1) / parts - words * part / parts;
    std::uint64_t sum[32] = {};
    for (std::int64_t i = 0; i + 32 <= count; i += 32) {
      std::uint64_t block[32];
      std::memcpy(block, first + i * 8, sizeof block);
      for (int j = 0; j < 32; ++j) sum[j] += block[j];
    }
    for (const std::uint64_t s : sum) total += s;
  }
  return total;
}

void eigen_sgemm(int n) {
  static Eigen::MatrixXf a, b, c;
  if (a.rows() != n) {
    a = Eigen::MatrixXf::Random(n, n);
    b = Eigen::MatrixXf::Random(n, n);
    c.resize(n, n);
  }
  c.noalias() = a * b;
}

void eigen_product(int m, int n, int k) {
  static Eigen::MatrixXf a, b, c;
  if (a.rows() != m || a.cols() != k || b.cols() != n) {
    a = Eigen::MatrixXf::Random(m, k);
    b = Eigen::MatrixXf::Random(k, n);
    c.resize(m, n);
  }
  c.noalias() = a * b;
}

std::string eigen_version() {
  return std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
}

double large_page_share(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool inside = false;
  double resident = -1;
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, last = 0;
    double kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &last) == 2) inside = first <= address && address < last;
    if (!inside) continue;
    if (std::sscanf(line.c_str(), "Rss: %lf", &kib) == 1) resident = kib;
    if (std::sscanf(line.c_str(), "AnonHugePages: %lf", &kib) == 1) return resident > 0 ? kib / resident : -1;
  }
  return -1;
}

}  // namespace kvx::bench
