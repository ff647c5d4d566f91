// A cache whose old rows lie in a file does what one does that keeps them in memory, bit for bit; and says so when the file fails.

#include "far_twins.hpp"

#include <support/far_file_calls.hpp>
#include <support/feed.hpp>
#include <support/thread_pool.hpp>

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::far_file_calls;

/// Whether an error names a line of the caller's, not one of the library's.
bool is_of_caller(const std::exception& error) {
  const std::string_view text = error.what();
  return text.find("far_file.cpp:") != text.npos || text.find("feed.hpp:") != text.npos;
}

template <template <placement> class Spec>
void play(host exec, bool mapped = false) {
  twins<Spec<placement::resident>, Spec<placement::offload_bulk>> t(exec, mapped);
  const attend_options few{.keep = 32, .path = route::retrieve}, all{.keep = 32, .path = route::dense};
  const attend_options many{.keep = 320, .path = route::retrieve};  // more rows than slots
  t.grow(390, few);
  t.decode(6, few);
  t.decode(1, all);
  t.decode(3, many);
  t.cut(0, 40);   // into a block that is far
  t.decode(3, few);
  t.fork(0, 150);  // far tokens are recent again
  t.decode(12, few);
  t.feed({1}, 70, true, few);  // what the fork packs is its own
  t.decode(4, few);
  t.audited = true;
  t.decode(3, few);
  t.audited = false;
  memory_store near, far;
  const digest key = key_of(t.a.family(), std::vector<std::int32_t>{1});
  REQUIRE(t.a.save(t.exec, t.open[0].a, near, key).ok());
  REQUIRE(t.b.save(t.exec, t.open[0].b, far, key).ok());
  t.close(0);
  const restored x = t.a.restore(t.exec, near, key), y = t.b.restore(t.exec, far, key);
  REQUIRE(x.state.ok());
  REQUIRE(y.state.ok());
  t.open.push_back({x.of, y.of});
  t.decode(4, few);
  t.grow(330, few);
  t.decode(6, few);
  t.decode(1, all);
  CHECK(t.compared > 10000);
  CHECK(t.apart == 0);
  CHECK(t.of_a.pairs > 0);
  CHECK(t.of_a == t.of_b);
  const cache_stats stats = t.b.stats();
  CHECK(stats.far_bytes > 0);
  CHECK(stats.far_moved > 0);
  CHECK(stats.far_hit > 0);
  CHECK(stats.far_wanted == stats.far_hit + stats.far_moved);
  CHECK(stats.row_bytes + stats.far_bytes == t.a.stats().row_bytes);
}

/// A step of token 5,000, behind so many pieces of `each` tokens.
template <class C>
step one_more(C& c, const host& exec, sequence s, int pieces, std::int64_t each) {
  for (std::int64_t i = 0; i < pieces; ++i) test::feed(c, exec, s, tokens(static_cast<token>(1 + each * i), each));
  step open = c.begin(exec, {{s, 1}});
  append_all(c, exec, open, tokens(5000, 1));
  return open;
}

}  // namespace

TEST_CASE("rows in a file: outputs are those of a resident cache") {
  play<ice>(test::one_thread());
  play<ice>(test::one_thread(), true);
  play<paris>(host{.threads = 3, .parallel = test::std_threads()});
  play<ice_in_tiers>(test::one_thread());
  play<ice>(host{.threads = 3, .parallel = test::std_threads(), .index_ahead = 2});
}

TEST_CASE("rows in a file: blocks of a restored sequence whose pages another one brought near") {
  twins<ice<placement::resident>, ice<placement::offload_bulk>> t(test::one_thread(), false);
  const attend_options few{.keep = 32, .path = route::retrieve};
  memory_store near, far;
  const digest key = key_of(t.a.family(), std::vector<std::int32_t>{1});
  const auto save = [&](std::int64_t first) {
    REQUIRE(t.a.save(t.exec, t.open[0].a, near, key, {.first = first}).ok());
    REQUIRE(t.b.save(t.exec, t.open[0].b, far, key, {.first = first}).ok());
    t.close(0);
  };
  const auto restore = [&](const restore_options& on_a, const restore_options& on_b) {
    const restored x = t.a.restore(t.exec, near, key, on_a), y = t.b.restore(t.exec, far, key, on_b);
    REQUIRE(x.state.ok());
    REQUIRE(y.state.ok());
    t.open.push_back({x.of, y.of});
  };
  t.grow(390, few);
  save(200);
  t.grow(200, few);  // its recent tokens are a whole block and more, which is packed with what continues it
  restore({.after = t.open[0].a}, {.after = t.open[0].b});
  t.close(0);
  t.decode(6, few);
  t.grow(330, few);
  t.decode(8, few);
  t.close(1);
  save(0);
  restore({}, {});
  t.fork(0, 170);
  t.feed({1}, 1, false, few);  // the block before the fork's end is near before the other one has had a step
  t.decode(8, few);
  t.grow(330, few);
  t.decode(8, few);
  CHECK(t.compared > 1000);
  CHECK(t.apart == 0);
}

TEST_CASE("rows in a file: what is missing of a selection is read once, and nothing else") {
  const host exec = test::one_thread();
  geometry g = small(304);
  g.far.calls.read = read_counted;
  cache<host, ice<placement::offload_bulk>> c(exec, {}, g);
  const sequence s = c.open(exec);
  step open = one_more(c, exec, s, 12, 40);
  const auto attend = [&](std::int64_t keep) {
    const cache_stats before = c.stats();
    bytes_read = 0;
    attend_all(c, exec, open, tokens(5000, 1), {.keep = keep, .path = route::retrieve});
    const cache_stats after = c.stats();
    CHECK(after.far_bytes_moved - before.far_bytes_moved == bytes_read);
    CHECK(after.far_wanted - before.far_wanted == after.far_hit - before.far_hit + after.far_moved - before.far_moved);
    return std::array{after.far_hit - before.far_hit, after.far_moved - before.far_moved};
  };
  const auto first = attend(32), again = attend(32), more = attend(64);
  CHECK(first[1] > 0);
  CHECK(again[1] == 0);
  CHECK(again[0] > 0);
  CHECK(more[0] > 0);
}

TEST_CASE("rows in a file: what cannot be near is refused, and nothing has changed") {
  const host exec = test::one_thread();
  cache<host, ice<placement::offload_bulk>> c(exec, {}, small(64));
  const sequence s = c.open(exec);
  test::feed(c, exec, s, tokens(1, 40));
  CHECK_THROWS_AS(c.begin(exec, {{s, 100}}), capacity_error);
  CHECK(c.length(s) == 40);
  test::feed(c, exec, s, tokens(41, 8));
  CHECK_THROWS_AS(c.view(1), usage_error);
  geometry nowhere = small(64);
  nowhere.far.folder = "/nonexistent/kvx";
  CHECK_THROWS_WITH_AS((cache<host, ice<placement::offload_bulk>>(exec, {}, nowhere)), doctest::Contains("far_file.cpp:"), usage_error);
}

TEST_CASE("rows in a file: a disk that is full or fails in the middle of decoding") {
  const host exec = test::one_thread();
  const attend_options few{.keep = 32, .path = route::retrieve};
  geometry g = small(208);
  g.far.calls = {read_or_fail, write_or_fail};
  cache<host, ice<placement::resident>> a(exec, {}, small(0));
  cache<host, ice<placement::offload_bulk>> b(exec, {}, g);
  const sequence x = a.open(exec), y = b.open(exec);
  std::int64_t refused = 0;
  token next = 1;
  for (int i = 0; i < 60; ++i) {
    const std::vector<token> ids = tokens(next, i < 12 ? 30 : 2);
    next += static_cast<token>(ids.size());
    step on_a = a.begin(exec, {{x, std::ssize(ids)}});
    append_all(a, exec, on_a, ids);
    observe_all(a, exec, on_a, ids);
    const std::vector<float> expected = i < 12 ? std::vector<float>() : attend_all(a, exec, on_a, ids, few);
    a.commit(exec, on_a);
    for (int tries = 1;; ++tries) {  // the n-th call fails, then none does
      failing = i > 8 && tries < 8 ? tries : 0;
      error_of_failure = i % 2 == 0 ? ENOSPC : EIO;
      try {
        step on_b = b.begin(exec, {{y, std::ssize(ids)}});
        append_all(b, exec, on_b, ids);
        observe_all(b, exec, on_b, ids);
        if (i >= 12) {
          const std::vector<float> out = attend_all(b, exec, on_b, ids, few);  // may throw
          REQUIRE(out == expected);
        }
        b.commit(exec, on_b);
        failing = 0;
        break;
      } catch (const capacity_error& error) {
        CHECK(error_of_failure == ENOSPC);
        CHECK(is_of_caller(error));
        ++refused;
      } catch (const std::system_error& error) {
        CHECK(error.code().value() == EIO);
        CHECK(is_of_caller(error));
        ++refused;
      }
      CHECK(b.length(y) == static_cast<std::int64_t>(next - 1 - ids.size()));
    }
  }
  failing = 0;
  CHECK(refused > 30);
}

TEST_CASE("rows in a file: a file that has become shorter is an error, and no signal") {
  const host exec = test::one_thread();
  geometry g = small(96);
  g.far.calls.read = read_nothing;
  cache<host, ice<placement::offload_bulk>> c(exec, {}, g);
  const sequence s = c.open(exec);
  step open = one_more(c, exec, s, 8, 30);
  CHECK_THROWS_AS(attend_all(c, exec, open, tokens(5000, 1), {.keep = 32, .path = route::retrieve}), std::system_error);
  CHECK_THROWS_AS(attend_all(c, exec, open, tokens(5000, 1), {.path = route::dense}), std::system_error);
  c.commit(exec, open);
  CHECK(c.length(s) == 241);
}

TEST_CASE("rows in a file: a file that is cut between steps and grows again never gives other outputs") {
  const host exec = test::one_thread();
  const attend_options few{.keep = 32, .path = route::retrieve};
  geometry g = small(304);
  g.far.calls.write = write_noted;
  cache<host, ice<placement::resident>> a(exec, {}, small(0));
  cache<host, ice<placement::offload_bulk>> b(exec, {}, g);
  const sequence x = a.open(exec), y = b.open(exec);
  const auto once = [&](auto& c, sequence s, const std::vector<token>& ids, std::vector<float>& out) {
    step open = c.begin(exec, {{s, std::ssize(ids)}});
    append_all(c, exec, open, ids);
    out = attend_all(c, exec, open, ids, few);
    c.commit(exec, open);
  };
  std::vector<float> expected, out;
  std::int64_t told = 0, apart = 0;
  token next = 1;
  for (int i = 0; i < 60 && told < 100; ++i) {
    const std::vector<token> ids = tokens(next, 8);
    next += 8;
    once(a, x, ids, expected);
    if (i == 50) REQUIRE(::ftruncate(written_to, 0) == 0);
    try {
      once(b, y, ids, out);
      apart += out == expected ? 0 : 1;
    } catch (const std::system_error&) {
      ++told;
      try {
        test::feed(b, exec, y, ids);
      } catch (const std::system_error&) {
        told += 100;  // nothing goes to this file any more
      }
    }
  }
  CHECK(apart == 0);
  CHECK(told > 100);
}

TEST_CASE("IceCache over bf16 and ParisKV over floats side by side, a file each, attend as each does alone") {
  const host exec = test::one_thread();
  const auto decode = [&]<class... Cache>(Cache&... c) {
    std::array<std::vector<float>, sizeof...(Cache)> outputs;
    std::array<sequence, sizeof...(Cache)> s{c.open(exec)...};
    const auto advance = [&](auto& one, std::size_t i, const std::vector<token>& ids) {
      step open = one.begin(exec, {{s[i], std::ssize(ids)}});
      append_all(one, exec, open, ids);
      const std::vector<float> out = attend_all(one, exec, open, ids, {.keep = 32, .path = route::retrieve});
      outputs[i].insert(outputs[i].end(), out.begin(), out.end());
      one.commit(exec, open);
    };
    for (token at = 1; at < 430; at += at < 400 ? 40 : 1) {
      std::size_t i = 0;
      (advance(c, i++, tokens(at, at < 400 ? 40 : 1)), ...);
    }
    return outputs;
  };
  using first = cache<host, ice<placement::offload_bulk>>;
  using second = cache<host, paris<placement::offload_bulk>>;
  const geometry g = small(304);
  first a(exec, {}, g), a_alone(exec, {}, g);
  second b(exec, {}, g), b_alone(exec, {}, g);
  const auto both = decode(a, b);
  CHECK(both[0] == decode(a_alone)[0]);
  CHECK(both[1] == decode(b_alone)[0]);
  CHECK(both[0] != both[1]);
  CHECK(a.stats().far_moved > 0);
  CHECK(b.stats().far_moved > 0);
  CHECK(a.stats().far_bytes_moved == a.stats().far_moved * 16 * 2 * 64 * 2);  // pages of 16 tokens, K and V of bf16
  CHECK(b.stats().far_bytes_moved == b.stats().far_moved * 2 * 64 * 4);       // rows, K and V of floats
}

TEST_CASE("rows in a file: a disk that is full or fails when a restored sequence goes on") {
  const host exec = test::one_thread();
  const attend_options few{.keep = 32, .path = route::retrieve};
  geometry g = small(208);
  g.far.calls = {read_or_fail, write_or_fail};
  cache<host, ice<placement::resident>> a(exec, {}, small(0));
  cache<host, ice<placement::offload_bulk>> b(exec, {}, g);
  const sequence first = a.open(exec), other = b.open(exec);
  for (token t = 1; t < 400; t += 30) test::feed(a, exec, first, tokens(t, 30));
  for (token t = 3000; t < 3090; t += 30) test::feed(b, exec, other, tokens(t, 30));
  memory_store stored;
  const digest key = key_of(a.family(), std::vector<std::int32_t>{1});
  REQUIRE(a.save(exec, first, stored, key).ok());
  a.close(exec, first);
  std::int64_t refused = 0;
  for (int round = 0; round < 2; ++round) {
    const restored x = a.restore(exec, stored, key), y = b.restore(exec, stored, key);
    REQUIRE(x.state.ok());
    REQUIRE(y.state.ok());
    for (int i = 0; i < 4; ++i) {
      const std::vector<token> ids = tokens(static_cast<token>(7000 + 10 * i), 2);
      step on_a = a.begin(exec, {{x.of, 2}});
      append_all(a, exec, on_a, ids);
      const std::vector<float> expected = attend_all(a, exec, on_a, ids, few);
      a.commit(exec, on_a);
      error_of_failure = round == 0 ? ENOSPC : EIO;
      for (int tries = 1;; ++tries) {
        failing = tries < 30 ? tries : 0;
        try {
          step on_b = b.begin(exec, {{y.of, 2}});
          append_all(b, exec, on_b, ids);
          const std::vector<float> out = attend_all(b, exec, on_b, ids, few);
          REQUIRE(out == expected);
          b.commit(exec, on_b);
          break;
        } catch (const capacity_error&) {
          ++refused;
        } catch (const std::system_error&) {
          ++refused;
        }
      }
      failing = 0;
    }
    a.close(exec, x.of);
    b.close(exec, y.of);
    test::feed(b, exec, other, tokens(static_cast<token>(3100 + 30 * round), 30));
  }
  CHECK(refused > 20);
  CHECK(b.length(other) == 150);
}
