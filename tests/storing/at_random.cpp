// Random operations, among them saving and restoring: the cache holds what the model holds, which knows of neither.

#include "../cache/player.hpp"

#include <support/feed.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using namespace kvx;
using namespace kvx::test;

/// A player that restores copies of what it has.
template <class Layout>
struct storing_player : player<Layout> {
  using base = player<Layout>;
  using base::base;
  memory_store store;
  int restored_well = 0, lacking = 0;

  /// Saves any sequence, those with an open step too, and restores it beside itself.
  void save_and_restore() {
    if (this->handles_.empty()) return;
    const auto [id, handle] = *this->any(this->handles_);
    const auto before = this->cache_.stats().pages_used;
    REQUIRE(this->cache_.save(this->exec_, handle, store, digest{}, {.chunk = 1 + this->below(40)}).ok());
    CHECK(this->cache_.stats().pages_used == before);
    if (this->model_.full() || this->model_.copy_lacks(id)) {
      ++lacking;
      CHECK_THROWS_AS((void)this->cache_.restore(this->exec_, store, digest{}), capacity_error);
      CHECK(this->cache_.stats().pages_used == before);
      return;
    }
    const restored r = this->cache_.restore(this->exec_, store, digest{});
    REQUIRE_MESSAGE(r.ok(), message(r.state));
    this->handles_[this->model_.copy(id)] = r.of;
    ++restored_well;
  }
};

}  // namespace

TEST_CASE("restored among random operations, pages of every kind of layer") {
  using layout = paged<half, page_shape{.tokens = 4, .key_dim = 5, .value_dim = 3}, zones{.sink = 4, .local = 6}>;
  for (int run = 0; run < runs; ++run) {
    const std::uint64_t seed = seed_of(900, run);
    CAPTURE(seed);
    storing_player<layout> p(seed, one_thread());
    const int count = operations() / 4;
    for (int i = 0; i < count; ++i) {
      CAPTURE(i);
      p.play();
      if (i % 4 == 0) p.save_and_restore();
    }
    p.clear();
    if (count < 250) continue;
    CHECK(p.restored_well > count / 200);
    CHECK(p.lacking > 0);
  }
}
