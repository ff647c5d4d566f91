// Two writers of two caches, many readers of views, a caller's own threads: the same bits as one thread, and no race.

#include <support/feed.hpp>
#include <support/thread_pool.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::feed, test::snapshot, test::tokens;

using layout = paged<bf16, page_shape{.tokens = 16, .key_dim = 24, .value_dim = 8}, zones{.sink = 4, .local = 8}>;
using cache_type = cache<host, spec<layout, test::checksum_index>>;

/// Thread t of T runs tasks t, t + T, ...: no two tasks of different threads are ordered by anything, so that a sanitizer sees
/// every pair that touches the same bytes (a shared counter would order most of them).
parallel_for unordered_threads() {
  return {[](void*, int threads, std::int64_t tasks, parallel_for::task call, const void* argument) {
            std::vector<std::thread> all;
            for (int t = 0; t < threads; ++t) {
              all.emplace_back([=] {
                for (std::int64_t i = t; i < tasks; i += threads) call(argument, i);
              });
            }
            for (std::thread& t : all) t.join();
          },
          nullptr};
}

geometry four_layers() {
  return {.layers = 4,
          .kv_heads = 3,
          .query_heads = 6,
          .max_tokens = 1000,
          .max_sequences = 6,
          .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(30, 4), layer_kind::retrieve()}};
}

/// A prompt of 150 tokens, three forks of it that go on in one batch, all of it attended to.
std::vector<float> history(const host& exec, std::vector<std::byte>& bits) {
  cache_type c(exec, {}, four_layers());
  const sequence a = c.open(exec);
  step prompt = c.begin(exec, {{a, 150}});
  append_all(c, exec, prompt, tokens(1, 150));
  std::vector<float> out = attend_all(c, exec, prompt, tokens(1, 150));
  c.commit(exec, prompt);
  // Pages that all forks share enter the retrieval zone with one commit: they must be encoded once, not by four threads.
  const sequence f = c.fork(exec, a), g = c.fork(exec, a), h = c.fork(exec, a, 144);
  step batch = c.begin(exec, {{f, 20}, {a, 18}, {h, 30}, {g, 1}});
  append_all(c, exec, batch, tokens(500, 69));
  const std::vector<float> more = attend_all(c, exec, batch, tokens(500, 69));
  c.commit(exec, batch);
  out.insert(out.end(), more.begin(), more.end());
  bits.clear();
  for (const sequence s : {a, f, g, h}) {
    const auto one = snapshot(c, s);
    bits.insert(bits.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace

TEST_CASE("any number of threads gives the same bits") {
  std::vector<std::byte> expected_bits, bits;
  const std::vector<float> expected = history(test::one_thread(), expected_bits);
  for (const int threads : {1, 2, 3, 7}) {
    CAPTURE(threads);
    CHECK(history({.threads = threads, .parallel = test::std_threads()}, bits) == expected);
    CHECK(bits == expected_bits);
    CHECK(history({.threads = threads, .parallel = unordered_threads()}, bits) == expected);
    CHECK(bits == expected_bits);
  }
}

TEST_CASE("two caches on two threads do not know of each other") {
  std::vector<std::byte> expected_bits;
  const std::vector<float> expected = history(test::one_thread(), expected_bits);
  std::atomic<int> equal = 0;
  const auto work = [&] {
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> bits;
      equal += history({.threads = 2, .parallel = test::std_threads()}, bits) == expected && bits == expected_bits;
    }
  };
  std::thread one(work), other(work);
  one.join();
  other.join();
  CHECK(equal == 6);
}

TEST_CASE("many threads read views between steps") {
  const host exec{.threads = 2, .parallel = test::std_threads()};
  cache_type c(exec, {}, four_layers());
  const sequence a = c.open(exec);
  for (int round = 0; round < 4; ++round) {
    feed(c, exec, a, tokens(static_cast<test::token>(1 + 40 * round), 40));
    std::vector<std::vector<std::byte>> seen(4);
    std::vector<std::thread> readers;
    for (auto& bits : seen) {
      readers.emplace_back([&] {
        bits = snapshot(c, a);
        if (c.stats().tokens != c.length(a)) bits.clear();
      });
    }
    for (std::thread& t : readers) t.join();
    for (const auto& bits : seen) CHECK(bits == snapshot(c, a));
    CHECK(seen[0].size() > 1000);
  }
}

TEST_CASE("steps of one cache are independent of the thread that carries them out") {
  const host exec = test::one_thread();
  cache_type c(exec, {}, four_layers()), twin(exec, {}, four_layers());
  const sequence a = c.open(exec), b = twin.open(exec);
  step s = c.begin(exec, {{a, 33}});
  std::thread([&] {
    append_all(c, exec, s, tokens(1, 33));
    c.commit(exec, s);
  }).join();
  feed(twin, exec, b, tokens(1, 33));
  CHECK(snapshot(c, a) == snapshot(twin, b));
}
