#pragma once
// A cache on the device and one on the host whose sequences are saved by either and restored by both.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/cuda/storing.cuh>
#include <kvx/kvx.cuh>
#include <kvx/store/memory_store.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvx::test::stored_twins {

inline constexpr page_shape stored_page{.tokens = 16, .key_dim = 24, .value_dim = 8};
inline constexpr zones stored_cut{.sink = 2, .local = 20};
inline const geometry layers_that_differ{
    .layers = 4,
    .kv_heads = 2,
    .query_heads = 4,
    .max_tokens = 600,
    .max_sequences = 4,
    .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(20, 3), layer_kind::retrieve()},
    .rollback = 16};

inline std::vector<std::byte> bytes_in(const std::unique_ptr<memory_store>& s) {
  std::vector<std::byte> bytes;
  REQUIRE(read_all(*s, digest{}, 1 << 24, bytes).ok());
  return bytes;
}

/// A cache on the device and one on the host, of one composition.
template <class Spec>
struct storing_twins {
  test_stream stream;
  device there;
  host here = one_thread();
  geometry g;
  cache_on_host<Spec> a;
  cache<host, Spec> b;

  explicit storing_twins(geometry of = layers_that_differ, Spec spec = {}, device_resource* memory = stream_ordered_memory())
      : there{.stream = stream.get(), .memory = memory}, g(std::move(of)), a(there, spec, g), b(here, spec, g) {}

  template <class Cache, class Exec>
  sequence learned(Cache& c, const Exec& exec, std::int64_t n) {
    const sequence s = c.open(exec);
    const auto ids = tokens(1, n);
    step step = c.begin(exec, {{s, n}});
    append_all(c, exec, step, ids);
    observe_all(c, exec, step, ids);
    c.commit(exec, step);
    return s;
  }
  std::unique_ptr<memory_store> saved_there(sequence s, const save_options& options) {
    auto store = std::make_unique<memory_store>();
    const status saved = a.on_device().save(there, s, *store, digest{}, options);
    REQUIRE_MESSAGE(saved.ok(), message(saved));
    return store;
  }
  std::unique_ptr<memory_store> saved_here(sequence s, const save_options& options) {
    auto store = std::make_unique<memory_store>();
    const status saved = b.save(here, s, *store, digest{}, options);
    REQUIRE_MESSAGE(saved.ok(), message(saved));
    return store;
  }
  sequence restored_there(const std::unique_ptr<memory_store>& store, const restore_options& options = {}) {
    const restored r = a.on_device().restore(there, *store, digest{}, options);
    REQUIRE_MESSAGE(r.ok(), message(r.state));
    return r.of;
  }
  sequence restored_here(const std::unique_ptr<memory_store>& store, const restore_options& options = {}) {
    const restored r = b.restore(here, *store, digest{}, options);
    REQUIRE_MESSAGE(r.ok(), message(r.state));
    return r.of;
  }
};

/// Frames of device and host are the same bytes; what either restores goes on as it was.
template <class Spec>
void check_frames() {
  geometry g = layers_that_differ;
  if constexpr (offloads<typename Spec::layout_type>()) g.near_tokens = 160;
  for (const std::int64_t n : {0, 21, 90}) {
    for (const bool columns : {false, true}) {
      if (columns && !names_columns<Spec>) continue;
      CAPTURE(n);
      CAPTURE(columns);
      storing_twins<Spec> x(g);
      const sequence s = x.learned(x.a, x.there, n), t = x.learned(x.b, x.here, n);
      const save_options options{.chunk = 50, .columns = columns};
      const auto store = x.saved_there(s, options);
      CHECK(bytes_in(store) == bytes_in(x.saved_here(t, options)));
      const auto counted = counts(x.a.stats());
      const sequence u = x.restored_there(store), v = x.restored_here(store);
      CHECK(snapshot(x.a, u) == snapshot(x.b, t));
      CHECK(snapshot(x.b, v) == snapshot(x.b, t));
      feed(x.a, x.there, u, tokens(500, 40));
      feed(x.b, x.here, t, tokens(500, 40));
      CHECK(snapshot(x.a, u) == snapshot(x.b, t));
      CHECK(bytes_in(x.saved_there(u, options)) == bytes_in(x.saved_here(t, options)));
      x.a.close(x.there, u);
      if (!decltype(x.a)::cache_type::spills) CHECK(counts(x.a.stats()) == counted);  // else older pages have moved
    }
  }
}

}  // namespace kvx::test::stored_twins
