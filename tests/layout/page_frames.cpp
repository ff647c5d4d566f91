// Frames of pages: what a step needs is near, nothing is lost on the way, and the oldest go first.

#include <kvx/layout/page_frames.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace {

using namespace kvx;

/// Frames beside the pool whose pages they hold, and what a copy of the rows would hold.
struct world {
  page_pool pool;
  page_frames frames;
  std::vector<std::int64_t> rows;  // (frames)
  std::vector<page_id> pages;
  std::vector<std::int64_t> written;  // (pages)
  std::int64_t next = 1;

  world(std::int64_t count, std::int64_t near, std::int64_t far)
      : pool(count), frames(count, near, far), rows(static_cast<std::size_t>(near + far), -1) {}

  frame_moves place(const frame_request& request) {
    page_frames after = frames;
    const frame_moves moves = after.place(pool, request, call_site::here());
    frames = std::move(after);
    for (const auto* list : {&moves.out, &moves.in}) {
      const std::vector<std::int64_t> before = rows;  // the moves of a list are made side by side
      for (const frame_move& m : *list) rows[static_cast<std::size_t>(m.to)] = before[static_cast<std::size_t>(m.from)];
    }
    return moves;
  }
  std::int64_t& row(page_id id) { return rows[static_cast<std::size_t>(frames.of(id))]; }
  void open(std::int64_t n) {
    frame_request request;
    for (std::int64_t i = 0; i < n; ++i) {
      pages.push_back(pool.acquire());
      request.needed.push_back(pages.back());
    }
    place(request);
    for (std::int64_t i = 0; i < n; ++i) {
      row(pages[pages.size() - static_cast<std::size_t>(n - i)]) = next;
      written.push_back(next++);
    }
  }
  void close(std::size_t i) {
    pool.release(pages[i]);
    pages.erase(pages.begin() + static_cast<std::ptrdiff_t>(i));
    written.erase(written.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void check() {
    std::set<std::int32_t> taken;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      REQUIRE(frames.of(pages[i]) >= 0);
      REQUIRE(taken.insert(frames.of(pages[i])).second);
      REQUIRE(row(pages[i]) == written[i]);
    }
    const page_frames::count used = frames.used(pool);
    REQUIRE(used.near + used.far == std::ssize(pages));
    REQUIRE(used.near <= frames.near());
  }
};

}  // namespace

TEST_CASE("the oldest pages go, what is needed or dear stays, and rows come back") {
  world w(8, 4, 6);
  w.open(4);
  const std::vector<page_id> p = w.pages;
  CHECK(w.place({{p[0], p[3]}, {}}).empty());
  frame_request more{{p[0], w.pool.acquire()}, {p[1]}};
  w.pages.push_back(more.needed[1]);
  w.written.push_back(7);
  CHECK(w.place(more) == frame_moves{{{2, 4}}, {}});  // page 0 is needed, page 1 dear: page 2, from frame 2
  w.row(more.needed[1]) = 7;
  w.check();
  CHECK(!w.frames.is_near(p[2]));
  CHECK(w.place({{p[2]}, {}}) == frame_moves{{{0, 5}}, {{4, 0}}});  // page 0 came first; its frame is filled again
  w.check();
  CHECK_THROWS_AS(w.place({{p[0], p[1], p[2], p[3], more.needed[1]}, {}}), capacity_error);
  w.check();
  CHECK(w.place({{p[0]}, {p[1], p[2], p[3], more.needed[1]}}).out.size() == 1);  // what is dear goes where all are
  w.check();
  w.close(4);
  CHECK(w.frames.used(w.pool).near == 3);
}

TEST_CASE("pages of random sequences of steps keep their rows") {
  std::mt19937_64 random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::int64_t out = 0, in = 0, refused = 0;
  for (int run = 0; run < 20; ++run) {
    world w(24, 7, 24);
    for (int i = 0; i < 200; ++i) {
      if (w.pool.free() >= 3 && below(3) == 0) {
        w.open(1 + static_cast<std::int64_t>(below(3)));
      } else if (!w.pages.empty() && below(4) == 0) {
        w.close(below(w.pages.size()));
      } else if (!w.pages.empty()) {
        frame_request request;
        for (std::size_t n = below(9); n > 0; --n) request.needed.push_back(w.pages[below(w.pages.size())]);
        for (std::size_t n = below(4); n > 0; --n) request.dear.push_back(w.pages[below(w.pages.size())]);
        try {
          const frame_moves moves = w.place(request);
          out += std::ssize(moves.out);
          in += std::ssize(moves.in);
          CHECK(w.frames.settled(request.needed));
        } catch (const capacity_error&) {
          ++refused;
        }
      }
      w.check();
    }
  }
  CHECK(out > 500);
  CHECK(in > 500);
  CHECK(refused > 0);
  CHECK(refused < 500);
}
