// Every misuse is refused with an error that names it, and changes nothing.

#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::counts, test::feed, test::one_thread, test::snapshot, test::tokens;

using small = cache<host, spec<paged<half, page_shape{.tokens = 4, .key_dim = 6, .value_dim = 3}>, test::checksum_index>>;
using slabs = cache<host, spec<contiguous<float, page_shape{.tokens = 16, .key_dim = 6, .value_dim = 3}>>>;

geometry two_layers() {
  return {.layers = 2,
          .kv_heads = 2,
          .query_heads = 4,
          .max_tokens = 40,
          .max_sequences = 3,
          .kinds = {layer_kind::retrieve(), layer_kind::window(5, 1)},
          .max_step_tokens = 30,
          .rollback = 4};
}

struct fixture {
  host exec = one_thread();
  small c{exec, {}, two_layers()};
  sequence a = c.open(exec);
  sequence b = c.open(exec);

  fixture() {
    feed(c, exec, a, tokens(1, 10));
    feed(c, exec, b, tokens(100, 3));
  }

  /// The call throws Error, its text holds `part` and the name of this file, and nothing is changed.
  template <class Error = usage_error, class Call>
  void refuses(const std::string& part, const Call& call) {
    const auto before = counts(c.stats());
    const auto bits_a = snapshot(c, a), bits_b = snapshot(c, b);
    CAPTURE(part);
    try {
      call();
      FAIL_CHECK("no throw");
    } catch (const Error& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find(part) != std::string::npos);
      CHECK(text.find("misuse.cpp:") != std::string::npos);
    }
    CHECK(counts(c.stats()) == before);
    CHECK(snapshot(c, a) == bits_a);
    CHECK(snapshot(c, b) == bits_b);
  }
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "handles that are closed, reused, foreign or made up") {
  const sequence old = c.open(exec);
  c.close(exec, old);
  const sequence reused = c.open(exec);
  CHECK(reused.slot == old.slot);
  small twin(exec, {}, two_layers());
  const sequence foreign = twin.open(exec);
  for (const sequence s : {old, foreign, sequence{}, sequence{a.cache, 99, 0}, sequence{a.cache, a.slot, a.generation + 1}}) {
    CAPTURE(s.slot);
    refuses("sequence: ", [&] { c.length(s); });
    refuses("sequence: ", [&] { c.truncate(exec, s, 0); });
    refuses("sequence: ", [&] { c.fork(exec, s); });
    refuses("sequence: ", [&] { c.fork(exec, s, 0); });
    refuses("sequence: ", [&] { c.close(exec, s); });
    refuses("sequence: ", [&] { c.begin(exec, {{a, 1}, {s, 1}}); });
    refuses("sequence: ", [&] { c.pages(0, s); });
  }
  refuses("sequence: closed", [&] { c.length(old); });
  refuses("sequence: not a handle of this cache", [&] { c.length(foreign); });
  CHECK(c.length(reused) == 0);
}

TEST_CASE_FIXTURE(fixture, "a sequence with an open step cannot be closed, cut or begun again, but forked") {
  step s = c.begin(exec, {{a, 2}});
  refuses("sequence: has an open step", [&] { c.close(exec, a); });
  refuses("sequence: has an open step", [&] { c.truncate(exec, a, 1); });
  refuses("sequence: has an open step", [&] { c.begin(exec, {{a, 1}}); });
  CHECK(c.length(c.fork(exec, a)) == 10);
}

TEST_CASE_FIXTURE(fixture, "counts of tokens") {
  refuses("batch: names a sequence twice", [&] { c.begin(exec, {{a, 1}, {b, 1}, {a, 0}}); });
  refuses("tokens of a batch entry is -1, allowed are 0 to", [&] { c.begin(exec, {{b, 1}, {a, -1}}); });
  refuses("tokens of a batch entry is 9223372036854775807", [&] { c.begin(exec, {{a, std::numeric_limits<std::int64_t>::max()}}); });
  refuses("tokens of a step is 31, allowed are 0 to 30", [&] { c.begin(exec, {{a, 1}, {b, 30}}); });
  refuses("tokens is 11, allowed are 0 to 10", [&] { c.truncate(exec, a, 11); });
  refuses("tokens is -1, allowed are 0 to 10", [&] { c.truncate(exec, a, -1); });
  refuses("tokens is 11, allowed are 0 to 10", [&] { c.fork(exec, a, 11); });
  refuses("tokens is -1, allowed are 0 to 10", [&] { c.fork(exec, a, -1); });
}

TEST_CASE_FIXTURE(fixture, "cutting where a window layer has freed rows") {
  feed(c, exec, a, tokens(11, 20));  // 30 tokens; pages before token 30 - 4 - 4 are gone
  refuses("tokens is 12: a window layer has freed rows that this length needs; the shortest is 24", [&] { c.truncate(exec, a, 12); });
  refuses("tokens is 23: a window layer has freed rows", [&] { c.fork(exec, a, 23); });
  CHECK_NOTHROW(c.truncate(exec, a, 26));
  CHECK_NOTHROW(c.truncate(exec, a, 1));
}

TEST_CASE_FIXTURE(fixture, "what does not fit carries its numbers") {
  c.open(exec);
  refuses<capacity_error>("out of sequences: 1 needed, 0 free", [&] { c.open(exec); });
  refuses<capacity_error>("out of sequences: 1 needed, 0 free", [&] { c.fork(exec, a); });
  // 13 pages in the first pool, 4 in use; 6 more tokens of a need 1, 35 more of b need 9.
  refuses<capacity_error>("out of pages: 10 needed, 9 free", [&] { c.begin(exec, {{a, 6}, {b, 35}}); });
  try {
    c.begin(exec, {{a, 1000000000000}});
    FAIL("no throw");
  } catch (const capacity_error& error) {
    CHECK(error.needed() == 250000000000);
    CHECK(error.free() == 9);
  }
}

TEST_CASE("a slab that is full carries its numbers, whatever its pages") {
  for (const std::int64_t tokens_of_all : {48, 192}) {  // slabs of one page and of four
    const host exec = one_thread();
    slabs c(exec, {}, {.layers = 1, .kv_heads = 1, .query_heads = 1, .max_tokens = tokens_of_all, .max_sequences = 3});
    const sequence s = c.open(exec);
    feed(c, exec, s, tokens(1, 10));
    const std::int64_t slab = tokens_of_all / 3;
    try {
      c.begin(exec, {{s, slab - 9}});
      FAIL("no throw");
    } catch (const capacity_error& error) {
      CHECK(error.needed() == slab - 9);
      CHECK(error.free() == slab - 10);
      CHECK(std::string(error.what()).find("tokens of a slab") != std::string::npos);
    }
    feed(c, exec, s, tokens(11, slab - 10));
    const sequence f = c.fork(exec, s);
    CHECK(snapshot(c, f) == snapshot(c, s));
  }
}

TEST_CASE_FIXTURE(fixture, "steps: of another cache, moved from, committed, of no layer, twice, out of order") {
  small twin(exec, {}, two_layers());
  const sequence other = twin.open(exec);
  step foreign = twin.begin(exec, {{other, 1}});
  step own = c.begin(exec, {{a, 1}});
  const std::vector<float> k(12, 1), v(6, 1), q(24, 1);
  std::vector<float> out(12);
  refuses("step: of another cache", [&] { c.append(exec, foreign, 0, k.data(), v.data()); });
  refuses("step: of another cache", [&] { c.attend(exec, foreign, 0, q.data(), out.data()); });
  refuses("step: of another cache", [&] { c.commit(exec, foreign); });
  refuses("layer is 2, allowed are 0 to 1", [&] { c.append(exec, own, 2, k.data(), v.data()); });
  refuses("layer is -1, allowed are 0 to 1", [&] { c.append(exec, own, -1, k.data(), v.data()); });
  refuses("attend: append the rows of this layer first", [&] { c.attend(exec, own, 0, q.data(), out.data()); });
  c.append(exec, own, 0, k.data(), v.data());
  refuses("append: the step has rows of this layer already", [&] { c.append(exec, own, 0, k.data(), v.data()); });
  refuses("attend: append the rows of this layer first", [&] { c.attend(exec, own, 1, q.data(), out.data()); });
  refuses("layer is 2, allowed are 0 to 1", [&] { c.attend(exec, own, 2, q.data(), out.data()); });
  refuses("commit: a layer was not appended", [&] { c.commit(exec, own); });
  c.append(exec, own, 1, k.data(), v.data());
  refuses("accepted: one count for each entry of the batch", [&] { c.commit(exec, own, std::vector<std::int64_t>{1, 1}); });
  refuses("an entry of accepted is 2, allowed are 0 to 1", [&] { c.commit(exec, own, std::vector<std::int64_t>{2}); });
  refuses("an entry of accepted is -1, allowed are 0 to 1", [&] { c.commit(exec, own, std::vector<std::int64_t>{-1}); });

  step moved = std::move(own);
  CHECK_FALSE(own.open());
  refuses("step: committed or moved from", [&] { c.commit(exec, own); });
  refuses("step: committed or moved from", [&] { c.append(exec, own, 0, k.data(), v.data()); });
  c.commit(exec, moved);
  CHECK_FALSE(moved.open());
  refuses("step: committed or moved from", [&] { c.commit(exec, moved); });
  refuses("step: committed or moved from", [&] { c.attend(exec, moved, 0, q.data(), out.data()); });
  CHECK(c.length(a) == 11);
}

TEST_CASE_FIXTURE(fixture, "arrays of another shape, and none") {
  step s = c.begin(exec, {{a, 2}, {b, 1}});
  const std::vector<float> x(1000, 1);
  std::vector<float> y(1000);
  const auto view = [&](std::int64_t n, std::int64_t h, std::int64_t d) { return tensor_view<const float, 3>(x.data(), n, h, d); };
  refuses("extent 0 of k is 2, allowed are 3 to 3", [&] { c.append(exec, s, 0, view(2, 2, 6), view(3, 2, 3)); });
  refuses("extent 1 of k is 4, allowed are 2 to 2", [&] { c.append(exec, s, 0, view(3, 4, 6), view(3, 2, 3)); });
  refuses("extent 2 of k is 3, allowed are 6 to 6", [&] { c.append(exec, s, 0, view(3, 2, 3), view(3, 2, 3)); });
  refuses("extent 2 of v is 6, allowed are 3 to 3", [&] { c.append(exec, s, 0, view(3, 2, 6), view(3, 2, 6)); });
  const float* none = nullptr;
  refuses("k is null", [&] { c.append(exec, s, 0, none, x.data()); });
  refuses("v is null", [&] { c.append(exec, s, 0, x.data(), none); });
  c.append(exec, s, 0, view(3, 2, 6), view(3, 2, 3));
  const auto out = tensor_view<float, 3>(y.data(), 3, 4, 3);
  refuses("extent 1 of q is 2, allowed are 4 to 4", [&] { c.attend(exec, s, 0, view(3, 2, 6), out); });
  refuses("extent 2 of out is 4, allowed are 3 to 3",
          [&] { c.attend(exec, s, 0, view(3, 4, 6), tensor_view<float, 3>(y.data(), 3, 4, 4)); });
  refuses("q is null", [&] { c.attend(exec, s, 0, none, y.data()); });
  refuses("out is null", [&] { c.attend(exec, s, 0, x.data(), static_cast<float*>(nullptr)); });
  refuses("soft_cap", [&] { c.attend(exec, s, 0, x.data(), y.data(), {.soft_cap = -1}); });
  refuses("soft_cap", [&] { c.attend(exec, s, 0, x.data(), y.data(), {.soft_cap = quiet_nan}); });
  refuses("scale", [&] { c.attend(exec, s, 0, x.data(), y.data(), {.scale = quiet_nan}); });
  refuses("scale", [&] { c.attend(exec, s, 0, x.data(), y.data(), {.scale = infinity}); });
}

TEST_CASE_FIXTURE(fixture, "steps without tokens need no arrays and no layers") {
  step s = c.begin(exec, {{a, 0}, {b, 0}});
  const float* none = nullptr;
  float* nowhere = nullptr;
  c.append(exec, s, 0, none, none);
  c.attend(exec, s, 0, none, nowhere);
  c.commit(exec, s);
  step empty = c.begin(exec, {});
  CHECK(empty.open());
  c.commit(exec, empty);
  CHECK(c.length(a) == 10);
}

TEST_CASE_FIXTURE(fixture, "looking where nothing is") {
  refuses("layer is 2, allowed are 0 to 1", [&] { c.view(2); });
  refuses("layer is -1, allowed are 0 to 1", [&] { c.pages(-1, a); });
  refuses("column: only retrieving layers have columns", [&] { c.column(1, 0); });
  refuses("c is 1, allowed are 0 to 0", [&] { c.column(0, 1); });
}

TEST_CASE("a geometry out of its limits names the field") {
  const geometry good = two_layers();
  CHECK_NOTHROW(small::bytes(good));
  struct wrong {
    const char* part;
    void (*change)(geometry&);
  };
  const wrong all[] = {
      {"geometry.layers is 0, allowed are 1 to 4096", [](geometry& g) { g.layers = 0; }},
      {"geometry.layers is -5", [](geometry& g) { g.layers = -5; }},
      {"geometry.kv_heads is 0", [](geometry& g) { g.kv_heads = 0; }},
      {"geometry.query_heads is 1, allowed are 2 to 128", [](geometry& g) { g.query_heads = 1; }},
      {"geometry.query_heads is not a multiple of kv_heads", [](geometry& g) { g.query_heads = 5; }},
      {"geometry.query_heads is 130", [](geometry& g) { g.query_heads = 130; }},
      {"geometry.max_tokens is 0", [](geometry& g) { g.max_tokens = 0; }},
      {"geometry.max_tokens is 1099511627777", [](geometry& g) { g.max_tokens = (std::int64_t{1} << 40) + 1; }},
      {"geometry.max_sequences is 0", [](geometry& g) { g.max_sequences = 0; }},
      {"geometry.max_step_tokens is 41, allowed are 0 to 40", [](geometry& g) { g.max_step_tokens = 41; }},
      {"geometry.max_step_tokens is -1", [](geometry& g) { g.max_step_tokens = -1; }},
      {"geometry.rollback is -1", [](geometry& g) { g.rollback = -1; }},
      {"size of geometry.kinds is 2, allowed are 3 to 3", [](geometry& g) { g.layers = 3; }},
      {"tokens of a window layer is 0", [](geometry& g) { g.kinds[1] = layer_kind::window(0); }},
      {"tokens of a window layer is -7", [](geometry& g) { g.kinds[1] = layer_kind::window(-7); }},
      {"sink of a window layer is -1", [](geometry& g) { g.kinds[1] = layer_kind::window(5, -1); }},
      {"pages of a layer is", [](geometry& g) { g.max_tokens = std::int64_t{1} << 36; }},
  };
  for (const wrong& w : all) {
    geometry g = good;
    w.change(g);
    CAPTURE(w.part);
    for (const bool build : {false, true}) {
      std::string text;
      try {
        if (build) {
          const small c(one_thread(), {}, g);
        } else {
          small::bytes(g);
        }
      } catch (const usage_error& error) {
        text = error.what();
      }
      CAPTURE(text);
      CHECK(text.find(w.part) != std::string::npos);
      CHECK(text.find("misuse.cpp:") != std::string::npos);
    }
  }
}

TEST_CASE_FIXTURE(fixture, "an execution without memory") {
  const host nowhere{.threads = 1, .memory = nullptr};
  refuses("host.memory is null", [&] { const small none(nowhere, {}, two_layers()); });
  const cache<host, spec<external<half, page_shape{.tokens = 4, .key_dim = 6, .value_dim = 3}>>> rows_elsewhere(exec, {}, two_layers());
  refuses("host.memory is null", [&] { const auto none = decltype(rows_elsewhere)(nowhere, {}, two_layers()); });
  refuses("host.memory is null", [&] { c.begin(nowhere, {{a, 1}}); });
  step s = c.begin(exec, {{a, 1}});
  append_all(c, exec, s, tokens(11, 1));
  refuses("host.memory is null", [&] { c.commit(nowhere, s); });
  c.commit(exec, s);
  CHECK(c.length(a) == 11);
}

TEST_CASE("default rollback does not keep small caches from being built") {
  CHECK_NOTHROW(slabs::bytes({.layers = 1, .kv_heads = 1, .query_heads = 1, .max_tokens = 16}));
}

TEST_CASE("a step that outlives its cache may be dropped, or refused") {
  const host exec = one_thread();
  auto c = std::make_optional<small>(exec, spec<small::layout, test::checksum_index>{}, two_layers());
  step kept = c->begin(exec, {{c->open(exec), 3}});
  c.reset();
  CHECK(kept.open());
  small other(exec, {}, two_layers());
  CHECK_THROWS_AS(other.commit(exec, kept), usage_error);
}
