// Chunks of a fixed size: each is its share of its rows, and is opened alone.

#include "coded_caches.hpp"
#include "stored.hpp"

#include <support/feed.hpp>

#include <kvx/codec/frame.hpp>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::coded_caches;

}  // namespace

TEST_CASE("pages of a fixed size: every chunk takes its share of its rows, whole or not; what no step fits stays as it is") {
  const host exec = one_thread();
  ours a(exec, spec_of<ours>(model()), coded_shape), b(exec, spec_of<ours>(model()), coded_shape);
  const sequence s = a.open(exec);
  feed(a, exec, s, tokens(1, 300));
  memory_store store;
  const auto kinds = [&](double ratio) {  // of the chunks: pages, rows
    std::vector<std::byte> bytes;
    REQUIRE(read_all(store, digest{}, 1 << 24, bytes).ok());
    frame_view view;
    REQUIRE(check_frame(bytes, view).ok());
    std::pair<int, int> counts;
    for (const frame_section& of : view.sections) {
      const auto layers = of.first_layer == 1 ? 1 : 2;  // of the spans
      const auto rows = of.tokens * static_cast<std::uint64_t>(layers * of.heads * (of.part == 1 ? D : Dv)) * sizeof(float);
      if (of.kind == section_kind::page) CHECK(of.bytes == static_cast<std::uint64_t>(static_cast<double>(rows) / ratio) / 8 * 8);
      CHECK(of.kind != section_kind::chunk);
      if (of.first_layer == 3 || of.first_token < 4 || of.first_token + of.tokens > 300 - 32) continue;
      ++(of.kind == section_kind::page ? counts.first : counts.second);
    }
    return counts;
  };
  double errors[2] = {};
  for (const bool coarse : {false, true}) {
    const double ratio = coarse ? 6.5 : 4;
    save_well(a, exec, s, store, {.chunk = 50, .fixed_ratio = ratio});
    const auto [made, others] = kinds(ratio);
    CHECK(made == 20);
    CHECK(others == 0);
    const sequence whole = restored_well(b, exec, store), part = restored_well(b, exec, store, {.tokens = 290});
    errors[coarse] = error_of(a, s, b, whole, 4, 300 - 32);
    const sequence straight = b.fork(exec, whole, 290);
    CHECK(snapshot(b, part) == snapshot(b, straight));
    for (const sequence t : {whole, part, straight}) b.close(exec, t);
  }
  CHECK(errors[0] < .3);
  CHECK(errors[1] > errors[0]);
  save_well(a, exec, s, store, {.chunk = 1, .fixed_ratio = 6.5});  // no room for a header
  CHECK(kinds(6.5).first == 0);
  CHECK(snapshot(a, s) == snapshot(b, restored_well(b, exec, store)));
  CHECK_THROWS_AS((void)a.save(exec, s, store, digest{}, {.fixed_ratio = .5}), usage_error);
  paper c(exec, spec_of<paper>(model()), coded_shape);
  CHECK_THROWS_AS((void)c.save(exec, c.open(exec), store, digest{}, {.fixed_ratio = 4}), usage_error);
}
