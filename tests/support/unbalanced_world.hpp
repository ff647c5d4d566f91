#pragma once
// Keys whose variance lies where queries have no energy: what a sketch without balance cannot rank.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

namespace kvx::test {

/// Keys and queries of one head.
///
/// what        channel scales s_d geometric from 1 to 30 in random order; key = s z, z normal; query = (z' / 2 + noise) / s with z' of a
///             random key and normal noise
/// shapes      keys (tokens, dim), queries (count, dim), scales (dim)
struct unbalanced_world {
  int dim;
  std::vector<float> scales;
  std::vector<float> keys;
  std::vector<float> queries;

  unbalanced_world(int dims, int tokens, int count, unsigned seed) : dim(dims) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int d = 0; d < dim; ++d) scales.push_back(std::pow(30.0f, static_cast<float>(d) / static_cast<float>(std::max(dim - 1, 1))));
    for (std::size_t d = scales.size(); d-- > 1;) std::swap(scales[d], scales[random() % (d + 1)]);
    for (int i = 0; i < tokens * dim; ++i) keys.push_back(scales[static_cast<std::size_t>(i % dim)] * normal(random));
    for (int i = 0; i < count; ++i) {
      const std::size_t near = random() % static_cast<unsigned>(tokens) * scales.size();
      for (std::size_t d = 0; d < scales.size(); ++d) queries.push_back((0.5f * keys[near + d] / scales[d] + normal(random)) / scales[d]);
    }
  }
};

}  // namespace kvx::test
