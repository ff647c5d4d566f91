// Rows in the caller's own pages: the same bits as a paged cache, whatever the arrangement and whatever becomes of the pages.

#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::arrangement, test::attend_all, test::engine_pages, test::one_thread, test::token, test::tokens;

constexpr zones cut{.sink = 4, .local = 6};

geometry four_layers() {
  return {.layers = 4,
          .kv_heads = 2,
          .query_heads = 6,
          .max_tokens = 160,
          .max_sequences = 5,
          .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(9, 2), layer_kind::retrieve()},
          .max_step_tokens = 60,
          .rollback = 12};
}

/// Every operation is carried out by a paged cache, by an external one, and by the engine that owns the latter's pages.
template <element E, page_shape Shape>
class twins {
 public:
  using own_type = cache<host, spec<paged<E, Shape, cut>, test::checksum_index>>;
  using other_type = cache<host, spec<external<E, Shape, cut>, test::checksum_index>>;

  twins(arrangement a, unsigned seed)
      : own_(exec_, {}, four_layers()), other_(exec_, {}, four_layers()), engine_(four_layers(), Shape, a, 400, seed), random_(seed) {
    bind();
  }

  /// One random operation, then every check.
  void play() {
    const int dice = below(100);
    if (dice < 10) {
      open();
    } else if (dice < 14) {
      close();
    } else if (dice < 26) {
      fork();
    } else if (dice < 40) {
      truncate();
    } else if (dice < 46) {
      move();
    } else {
      advance_some();
    }
    check();
  }

  std::int64_t commits = 0, drops = 0, shortages = 0, refusals = 0, columns_checked = 0, most_shared = 0;

 private:
  struct entry {
    sequence own, other;
    std::vector<std::int32_t> pages;  // of the engine
  };

  int below(std::int64_t n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  entry& any() { return sequences_[static_cast<std::size_t>(below(static_cast<std::int64_t>(sequences_.size())))]; }
  std::int64_t length(const entry& e) const { return own_.length(e.own); }

  void bind() {
    for (int layer = 0; layer < four_layers().layers; ++layer) other_.bind(layer, engine_.rows(layer));
  }

  /// Both caches do it, or both refuse for the same reason.
  template <class Own, class Other>
  bool both(const Own& own, const Other& other) {
    const auto reason = [](const auto& call) -> std::string {
      try {
        call();
        return "";
      } catch (const std::exception& error) {
        const std::string text = error.what();
        return text.substr(text.find(": "));  // without the line
      }
    };
    const std::string first = reason(own), second = reason(other);
    CHECK(first == second);
    (first.find("out of") != std::string::npos ? shortages : refusals) += !first.empty();
    return first.empty();
  }

  void open() {
    entry e;
    if (both([&] { e.own = own_.open(exec_); }, [&] { e.other = other_.open(exec_); })) sequences_.push_back(e);
  }

  void close() {
    if (sequences_.empty()) return;
    std::swap(any(), sequences_.back());
    entry& e = sequences_.back();
    CHECK(both([&] { own_.close(exec_, e.own); }, [&] { other_.close(exec_, e.other); }));
    engine_.cut(e.pages, 0);
    sequences_.pop_back();
  }

  void fork() {
    if (sequences_.empty()) return;
    const entry& from = any();
    const std::int64_t n = below(2) == 0 ? length(from) : below(length(from) + 1);
    entry e;
    if (!both([&] { e.own = own_.fork(exec_, from.own, n); }, [&] { e.other = other_.fork(exec_, from.other, n); })) return;
    e.pages = engine_.fork(from.pages, n);
    sequences_.push_back(std::move(e));
  }

  void truncate() {
    if (sequences_.empty()) return;
    entry& e = any();
    const std::int64_t n = std::max<std::int64_t>(0, length(e) - below(14));
    if (both([&] { own_.truncate(exec_, e.own, n); }, [&] { other_.truncate(exec_, e.other, n); })) engine_.cut(e.pages, n);
  }

  void move() {
    std::vector<std::vector<std::int32_t>*> tables;
    for (entry& e : sequences_) tables.push_back(&e.pages);
    engine_.move_all(tables);
    bind();
  }

  void advance_some() {
    std::vector<entry*> batch;
    std::vector<advance> own, other;
    std::vector<std::int64_t> before, accepted;
    std::vector<token> added;
    for (entry& e : sequences_) {
      if (below(3) == 0) continue;
      const std::int64_t n = length(e), more = below(4) == 0 ? below(30) : below(3);
      batch.push_back(&e);
      before.push_back(n);
      accepted.push_back(below(3) == 0 ? below(more + 1) : more);
      engine_.grow(e.pages, n, more);
      own.push_back({e.own, more});
      for (const token id : tokens(next_token_, more)) added.push_back(id);
      next_token_ += static_cast<token>(more);
    }
    for (std::size_t i = 0; i < batch.size(); ++i) other.push_back({batch[i]->other, own[i].tokens, batch[i]->pages});
    step s = own_.begin(exec_, {}), t = other_.begin(exec_, {});
    bool kept = both([&] { s = own_.begin(exec_, own); }, [&] { t = other_.begin(exec_, other); });
    if (kept) {
      append_all(own_, exec_, s, added);
      for (int layer = 0; layer < four_layers().layers; ++layer) {
        for (std::size_t i = 0; i < batch.size(); ++i) {
          const auto first = static_cast<std::size_t>(t.entries()[i].first);
          engine_.write(batch[i]->pages, before[i], std::span(added).subspan(first, static_cast<std::size_t>(own[i].tokens)), layer);
        }
        other_.append(exec_, t, layer);
      }
      CHECK(attend_all(own_, exec_, s, added) == attend_all(other_, exec_, t, added));
      kept = below(6) != 0;
      ++(kept ? commits : drops);
      if (kept) {
        own_.commit(exec_, s, accepted);
        other_.commit(exec_, t, accepted);
      } else {  // dropped: both steps end here
        std::vector<step> gone;
        gone.push_back(std::move(s));
        gone.push_back(std::move(t));
      }
    }
    for (std::size_t i = 0; i < batch.size(); ++i) engine_.cut(batch[i]->pages, before[i] + (kept ? accepted[i] : 0));
  }

  void check() {
    auto own = own_.stats(), other = other_.stats();
    CHECK(other.row_bytes == 0);
    CHECK(other.rows_copied == 0);
    own.row_bytes = 0;
    CHECK(test::counts(own) == test::counts(other));
    most_shared = std::max(most_shared, own.pages_shared);
    for (const entry& e : sequences_) {
      CHECK(other_.length(e.other) == length(e));
      for (const int layer : {1, 3}) check_columns(e, layer);
    }
  }

  /// Columns lie under the cache's page ids, and are those of the rows that lie under the engine's.
  void check_columns(const entry& e, int layer) {
    std::int64_t wrong = 0;
    for (std::int64_t j = cut.sink / Shape.tokens; j < edge(cut, length(e), Shape.tokens) / Shape.tokens; ++j) {
      const auto page = static_cast<std::size_t>(j);
      for (int h = 0; h < four_layers().kv_heads; ++h, ++columns_checked) {
        const std::uint64_t expected = test::checksum(engine_.rows(layer), e.pages[page], h);
        wrong += std::memcmp(other_.column(layer, 0).at(other_.pages(layer, e.other)[page], h), &expected, sizeof expected) != 0;
        wrong += std::memcmp(own_.column(layer, 0).at(own_.pages(layer, e.own)[page], h), &expected, sizeof expected) != 0;
      }
    }
    CHECK(wrong == 0);
  }

  host exec_ = one_thread();
  own_type own_;
  other_type other_;
  engine_pages<E> engine_;
  std::mt19937_64 random_;
  std::vector<entry> sequences_;
  token next_token_ = 1;
};

template <element E, page_shape Shape>
void play_all() {
  for (const arrangement a : test::arrangements) {
    CAPTURE(a.heads_first);
    CAPTURE(a.apart);
    twins<E, Shape> x(a, 7);
    for (int i = 0; i < 400; ++i) {
      CAPTURE(i);
      x.play();
    }
    for (const std::int64_t met : {x.commits, x.drops, x.shortages, x.refusals, x.columns_checked / 100, x.most_shared}) CHECK(met > 2);
  }
}

using small_shape = external<half, page_shape{.tokens = 4, .key_dim = 6, .value_dim = 3}>;
using small = cache<host, spec<small_shape, test::checksum_index>>;

/// An external cache of one sequence of 10 tokens, and its engine.
struct fixture {
  host exec = one_thread();
  geometry g;
  small c;
  engine_pages<half> engine;
  sequence a{};
  std::vector<std::int32_t> pages;

  explicit fixture(std::vector<layer_kind> kinds = {layer_kind::retrieve(), layer_kind::dense()})
      : g{.layers = 2, .kv_heads = 2, .query_heads = 4, .max_tokens = 40, .max_sequences = 3, .kinds = std::move(kinds), .rollback = 0},
        c(exec, {}, g),
        engine(g, small::layout::shape, {}, 40, 1),
        a(c.open(exec)) {}

  void bind() {
    for (int layer = 0; layer < g.layers; ++layer) c.bind(layer, engine.rows(layer));
  }

  /// A step of these tokens, written and appended.
  step write(token first, std::int64_t more) {
    const std::int64_t n = c.length(a);
    engine.grow(pages, n, more);
    step s = c.begin(exec, {{a, more, pages}});
    for (int layer = 0; layer < g.layers; ++layer) {
      engine.write(pages, n, tokens(first, more), layer);
      c.append(exec, s, layer);
    }
    return s;
  }

  template <class Call>
  void refuses(const std::string& part, const Call& call) {
    const auto before = test::counts(c.stats());
    CAPTURE(part);
    try {
      call();
      FAIL_CHECK("no throw");
    } catch (const usage_error& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find(part) != std::string::npos);
      CHECK(text.find("external.cpp:") != std::string::npos);
    }
    CHECK(test::counts(c.stats()) == before);
    CHECK_NOTHROW(c.begin(exec, {}));
  }
};

}  // namespace

TEST_CASE("steps, forks, truncations and moved pages: attention and columns equal those of a paged cache, bf16") {
  play_all<bf16, page_shape{.tokens = 4, .key_dim = 7, .value_dim = 5}>();
}

TEST_CASE("steps, forks, truncations and moved pages: attention and columns equal those of a paged cache, float") {
  play_all<float, page_shape{.tokens = 8, .key_dim = 24, .value_dim = 24}>();
}

TEST_CASE("layers that are not bound, and rows that cannot be this cache's") {
  fixture x;
  const std::vector<std::int32_t> pages = {0, 1, 2};
  const auto begin = [&] { x.c.begin(x.exec, {{x.a, 1, pages}}); };
  const auto unbound = [&] {
    try {
      begin();
      return false;
    } catch (const usage_error& error) {
      return std::string(error.what()).find("begin: bind the rows of every layer first") != std::string::npos;
    }
  };
  CHECK(unbound());
  x.c.bind(1, x.engine.rows(1));
  CHECK(unbound());
  CHECK(x.c.stats().pages_used == 0);
  x.bind();
  const row_view<const half> good = x.engine.rows(0);
  const auto refused = [&](const std::string& part, void (*change)(row_view<const half>&)) {
    row_view<const half> rows = good;
    change(rows);
    x.refuses(part, [&] { x.c.bind(0, rows); });
  };
  refused("heads of the rows is 4, allowed are 2 to 2", [](auto& r) { r.heads = 4; });
  refused("page_tokens of the rows is 8, allowed are 4 to 4", [](auto& r) { r.page_tokens = 8; });
  refused("key_dim of the rows is 3, allowed are 6 to 6", [](auto& r) { r.key_dim = 3; });
  refused("value_dim of the rows is 6, allowed are 3 to 3", [](auto& r) { r.value_dim = 6; });
  refused("bind: rows are null", [](auto& r) { r.key.data = nullptr; });
  refused("bind: rows are null", [](auto& r) { r.value.data = nullptr; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.page_stride = 0; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.head_stride = -5; });
  refused("a stride of the keys is less than key_dim", [](auto& r) { r.key.slot_stride = 5; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.page_stride = 2; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.head_stride = 0; });
  refused("a stride of the values is less than value_dim", [](auto& r) { r.value.slot_stride = -2; });
  x.refuses("layer is 2, allowed are 0 to 1", [&] { x.c.bind(2, good); });
  x.refuses("layer is -1, allowed are 0 to 1", [&] { x.c.bind(-1, good); });
  CHECK_NOTHROW(begin());
}

TEST_CASE("page tables that are too short, steps out of order") {
  fixture x;
  x.bind();
  step prompt = x.write(1, 10);
  x.refuses("append: the step has rows of this layer already", [&] { x.c.append(x.exec, prompt, 0); });
  x.refuses("layer is 2, allowed are 0 to 1", [&] { x.c.append(x.exec, prompt, 2); });
  x.c.commit(x.exec, prompt);
  x.refuses("step: committed or moved from", [&] { x.c.append(x.exec, prompt, 0); });
  const std::vector<std::int32_t> pages(4);
  x.refuses("size of an entry's page table is 0, allowed are 3 to", [&] { x.c.begin(x.exec, {{x.a, 1}}); });
  x.refuses("size of an entry's page table is 3, allowed are 4 to", [&] { x.c.begin(x.exec, {{x.a, 3, std::span(pages).first(3)}}); });
  CHECK_NOTHROW(x.c.begin(x.exec, {{x.a, 3, pages}}));
  CHECK_NOTHROW(x.c.begin(x.exec, {{x.a, 0, pages}}));
  step s = x.c.begin(x.exec, {{x.a, 3, pages}});
  const std::vector<float> q(3 * 4 * 6);
  std::vector<float> out(3 * 4 * 3);
  x.refuses("attend: append the rows of this layer first", [&] { x.c.attend(x.exec, s, 0, q.data(), out.data()); });
  x.refuses("commit: a layer was not appended", [&] { x.c.commit(x.exec, s); });
  CHECK(x.c.length(x.a) == 10);
}

TEST_CASE("an engine whose layers all have windows may recycle the pages behind them") {
  fixture x({layer_kind::window(5), layer_kind::window(6)}), y({layer_kind::window(5), layer_kind::window(6)});
  x.bind();
  y.bind();
  for (fixture* f : {&x, &y}) {
    step prompt = f->write(1, 18);
    f->c.commit(f->exec, prompt);
  }
  // The next token, 18, sees tokens from 13 on: pages 3 and 4.
  for (std::size_t page = 0; page < 3; ++page) x.pages[page] = page % 2 == 0 ? -1 : 2000000000;
  const step s = x.write(19, 1), t = y.write(19, 1);
  const std::vector<float> seen = attend_all(x.c, x.exec, s, tokens(19, 1));
  CHECK(seen == attend_all(y.c, y.exec, t, tokens(19, 1)));
  CHECK(std::count_if(seen.begin(), seen.end(), [](float value) { return value == 0 || value != value; }) == 0);
}
