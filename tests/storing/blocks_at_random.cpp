// Random operations on caches of semantic pages, among them saving and restoring: what is restored is a sequence none of whose queries were
// seen, whole or cut.

#include "../cache/blocks_player.hpp"

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace {

using namespace kvx;

template <class Cache>
struct storing_player : test::blocks_player<Cache> {
  using base = test::blocks_player<Cache>;
  using base::base;
  memory_store store;
  std::int64_t restored_well = 0, lacking = 0;

  /// Saves any sequence and restores it, or its first tokens, beside itself, or behind a fork of its own beginning.
  void save_and_restore() {
    while (std::cmp_greater(this->sequences_.size(), test::small_blocks().max_sequences - 2)) this->close();  // room for two more
    if (this->sequences_.empty()) return;
    auto& from = *this->any(this->sequences_);
    const std::int64_t n = std::ssize(from.tokens), first = this->below(3) == 0 ? this->below(n + 1) : 0;
    const std::int64_t kept = this->below(3) == 0 ? this->below(n - first + 1) : n - first;
    REQUIRE(this->cache_.save(this->exec_, from.handle, store, digest{}, {.first = first, .chunk = 1 + this->below(40)}).ok());
    auto tokens = from.tokens;
    tokens.resize(static_cast<std::size_t>(first + kept));
    for (auto t = tokens.begin() + first; t != tokens.end(); ++t) t->seen = false;
    sequence base_of;
    restore_options options{.tokens = kept};
    try {
      if (first > 0) options.after = base_of = this->cache_.fork(this->exec_, from.handle, first);
      const restored r = this->cache_.restore(this->exec_, store, digest{}, options);
      REQUIRE_MESSAGE(r.ok(), message(r.state));
      this->sequences_.push_back({r.of, std::move(tokens)});
      this->check(this->sequences_.back());
      ++restored_well;
    } catch (const capacity_error&) {
      ++lacking;
    }
    if (options.after) this->cache_.close(this->exec_, base_of);
  }
};

using pages = paged<bf16, test::small_page, test::blocks_cut>;
using ice = cache<
    host,
    spec<pages, dci_tree<dci_shape{
                    .block = 16, .by = dci_shape::metric::diagonal, .rank = dci_shape::ranking::best_member, .first_promotion = 200}>>>;

}  // namespace

TEST_CASE("restored among random operations, blocks and all") {
  for (int run = 0; run < test::runs; ++run) {
    const std::uint64_t seed = test::seed_of(1400, run);
    CAPTURE(seed);
    storing_player<ice> p(seed);
    const int count = std::max(1, test::operations() / 20);
    for (int i = 0; i < count; ++i) {
      CAPTURE(i);
      p.play();
      if (i % 3 == 0) p.save_and_restore();
    }
    if (count >= 50) CHECK(p.restored_well > count / 8);
  }
}
