// Nothing about a key's code goes stale: recall stays while ten thousand keys of a drifting distribution arrive.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "support/coarse_recall.hpp"
#include "support/drifting_keys.hpp"

TEST_CASE("recall of the best 100 at a tenth, over 10,000 drifting keys: flat within .02") {
  constexpr int dim = 64;
  constexpr std::size_t window = 2048;
  kvx::test::drifting_keys stream(dim, 5);
  double lowest = 1;
  double highest = 0;
  for (int part = 0; part < 5; ++part) {  // each window by itself, so that the number of keys does not differ
    std::vector<float> keys, queries;
    for (std::size_t t = 0; t < window; ++t) {
      const auto key = stream.next();
      keys.insert(keys.end(), key.begin(), key.end());
      if (t % 16 == 0) {
        const auto query = stream.query(key);
        queries.insert(queries.end(), query.begin(), query.end());
      }
    }
    const double recall = kvx::test::coarse_recall(keys, queries, dim, 100, nullptr);
    lowest = std::min(lowest, recall);
    highest = std::max(highest, recall);
  }
  MESSAGE("recall from " << lowest << " to " << highest);
  CHECK(highest - lowest < .02);
  CHECK(lowest > .7);
}
