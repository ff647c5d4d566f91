// Every method of the registry attends to as many rows as it says, and filters pick what they name.

#include <method.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace {

/// Rows that a layer attends to for the last of n tokens: with zero queries all weigh the same, and only the last row has a value.
double rows_seen(const quality::method& m, int layer, std::int64_t n) {
  const kvx::host exec{.threads = 1};
  constexpr int layers = 3;
  const kvx::geometry geometry{.layers = layers,
                               .kv_heads = 1,
                               .query_heads = 1,
                               .max_tokens = n,
                               .kinds = quality::kinds_of(m, layers),
                               .max_step_tokens = std::min<std::int64_t>(64, n)};
  const auto cache = m.make(exec, geometry);
  const std::vector<float> zeros(64 * quality::head_dim), ones(quality::head_dim, 1.0F);
  for (std::int64_t done = 0; done < n - 1;) {
    const std::int64_t count = std::min<std::int64_t>(64, n - 1 - done);
    cache->begin(count);
    for (int l = 0; l < layers; ++l) cache->append(l, zeros.data(), zeros.data());
    cache->commit();
    done += count;
  }
  std::vector<float> out(quality::head_dim);
  cache->begin(1);
  for (int l = 0; l < layers; ++l) cache->append(l, zeros.data(), ones.data());
  cache->attend(layer, zeros.data(), out.data());
  cache->commit();
  return 1 / static_cast<double>(out[0]);
}

}  // namespace

TEST_CASE("a method attends to as many rows as are printed of it; its first layers to all") {
  for (const quality::method& m : quality::all_methods()) {
    CAPTURE(m.name);
    for (const std::int64_t n : {1, 3, 100, 700}) {
      CAPTURE(n);
      CHECK(rows_seen(m, 2, n) == doctest::Approx(static_cast<double>(quality::attended(m, n))));
      CHECK(rows_seen(m, 1, n) == doctest::Approx(static_cast<double>(n)));
    }
  }
}

TEST_CASE("the window of keep 256 is one of 516, of which 4 are sinks") {
  const auto all = quality::all_methods();
  const auto window = std::find_if(all.begin(), all.end(), [](const auto& m) { return m.name == "window_256"; });
  REQUIRE(window != all.end());
  CHECK(window->kind == kvx::layer_kind::window(512, 4));
  CHECK(quality::attended(*window, 6145) == 516);
}

TEST_CASE("names differ, and a filter picks the methods that it is part of") {
  std::set<std::string_view> names;
  for (const quality::method& m : quality::all_methods()) {
    CHECK(names.insert(m.name).second);
    CHECK(quality::wanted(m, "") == !m.on_request);
    CHECK(quality::wanted(m, "kl_" + std::string(m.name)));
    CHECK(quality::wanted(m, "sweep") == m.on_request);
    CHECK_FALSE(quality::wanted(m, "no such method"));
  }
}
