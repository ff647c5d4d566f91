// An external cache under random operations: the same bits as a paged one, whatever the arrangement and whatever becomes of the pages.

#include "random_draws.hpp"
#include "run_length.hpp"

#include <support/engine_pages.hpp>
#include <support/feed.hpp>

#include <kvx/kvx.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
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
class twins : test::random_draws {
 public:
  using own_type = cache<host, spec<paged<E, Shape, cut>, test::checksum_index>>;
  using other_type = cache<host, spec<external<E, Shape, cut>, test::checksum_index>>;

  twins(arrangement a, std::uint64_t seed)
      : random_draws(seed),
        own_(exec_, {}, four_layers()),
        other_(exec_, {}, four_layers()),
        engine_(four_layers(), Shape, a, 400, static_cast<unsigned>(seed)) {
    bind();
  }

  /// One random operation, then every check.
  void play() {
    do_one_of(
        {10, 4, 12, 14, 6}, [&] { open(); }, [&] { close(); }, [&] { fork(); }, [&] { truncate(); }, [&] { move(); },
        [&] { advance_some(); });
    check();
  }

  std::int64_t commits = 0, drops = 0, shortages = 0, refusals = 0, columns_checked = 0, most_shared = 0;

 private:
  struct entry {
    sequence own, other;
    std::vector<std::int32_t> pages;  // of the engine
  };

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
    std::swap(*any(sequences_), sequences_.back());
    entry& e = sequences_.back();
    CHECK(both([&] { own_.close(exec_, e.own); }, [&] { other_.close(exec_, e.other); }));
    engine_.cut(e.pages, 0);
    sequences_.pop_back();
  }

  void fork() {
    if (sequences_.empty()) return;
    const entry& from = *any(sequences_);
    const std::int64_t n = below(2) == 0 ? length(from) : below(length(from) + 1);
    entry e;
    if (!both([&] { e.own = own_.fork(exec_, from.own, n); }, [&] { e.other = other_.fork(exec_, from.other, n); })) return;
    e.pages = engine_.fork(from.pages, n);
    sequences_.push_back(std::move(e));
  }

  void truncate() {
    if (sequences_.empty()) return;
    entry& e = *any(sequences_);
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
  std::vector<entry> sequences_;
  token next_token_ = 1;
};

/// One run for each arrangement of the caller's pages, each from another seed.
template <element E, page_shape Shape>
void play_all(int test) {
  int run = 0;
  for (const arrangement a : test::arrangements) {
    const std::uint64_t seed = test::seed_of(test, run++);
    CAPTURE(seed);
    CAPTURE(a.heads_first);
    CAPTURE(a.apart);
    twins<E, Shape> x(a, seed);
    const int count = test::operations();
    for (int i = 0; i < count; ++i) {
      CAPTURE(i);
      x.play();
    }
    if (count < 1000) continue;
    CHECK(x.commits > count / 10);
    CHECK(x.drops > count / 100);
    CHECK(x.refusals > count / 100);
    CHECK(x.shortages > count / 100);
    CHECK(x.columns_checked > count);
    CHECK(x.most_shared > 2);
  }
}

}  // namespace

TEST_CASE("steps, forks, truncations and moved pages: attention and columns equal those of a paged cache, float") {
  play_all<float, page_shape{.tokens = 8, .key_dim = 9, .value_dim = 9}>(700);
}

TEST_CASE("steps, forks, truncations and moved pages: attention and columns equal those of a paged cache, half") {
  play_all<half, page_shape{.tokens = 2, .key_dim = 3, .value_dim = 6}>(800);
}

TEST_CASE("steps, forks, truncations and moved pages: attention and columns equal those of a paged cache, bf16") {
  play_all<bf16, page_shape{.tokens = 4, .key_dim = 7, .value_dim = 5}>(900);
}
