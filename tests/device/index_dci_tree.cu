// The columns of semantic pages on the device are those of the host, byte for byte.

#include <kvx/index/cuda/dci_links.cuh>
#include <kvx/index/cuda/dci_tree.cuh>
#include <kvx/index/cuda/line_places.cuh>
#include <kvx/index/cuda/promoted_tokens.cuh>

#include <kvx/index/host/dci_tree.hpp>
#include <kvx/sketch/cuda/energies.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "batch_on_device.cuh"
#include "device_array.cuh"
#include "support/paged_rows.hpp"

using namespace kvx;
using test::device_array;

namespace {

using packing = dci_shape::packing;
using metric = dci_shape::metric;
using ranking = dci_shape::ranking;

struct block_case {
  dci_shape shape;
  int page_tokens = 16;
  int dim = 8;
  std::int64_t blocks = 2;
  std::int64_t sink = 0;
  rope_pairs pairs = {};
  int heads = 1;
  std::size_t sequences = 1;
  std::int64_t at_once = 1 << 20;  // blocks of each sequence
  bool aligned = false;
};

/// A column in host memory, every byte 0xff.
struct column_memory {
  std::vector<std::byte> bytes;
  column_array array;

  column_memory(std::int64_t pitch, std::int64_t pages, int heads)
      : bytes(static_cast<std::size_t>(pitch * pages * heads), std::byte{0xff}),
        array{pitch > 0 ? bytes.data() : nullptr, pitch, heads, pitch * pages} {}
};

/// Keys of a sequence, what its queries were, and its columns as the host fills them and as the device does.
template <class E>
class compared_blocks {
 public:
  explicit compared_blocks(const block_case& c)
      : c_(c),
        tokens_(c.blocks * c.shape.block),
        rows_({.heads = c.heads,
               .page_tokens = c.page_tokens,
               .key_dim = c.dim,
               .value_dim = 8,
               .lengths = std::vector<std::int64_t>(c.sequences, tokens_),
               .offset = c.aligned ? 0 : 1,
               .gap = c.aligned ? 0 : 3}),
        energies_(column{energy_column::block_bytes(c.page_tokens, c.dim)}.pitch(), all_pages(), c.heads) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (std::size_t s = 0; s < c.sequences; ++s) {
      for (std::int64_t p = learning_stride - 1; p < tokens_; p += learning_stride) {
        for (int h = 0; h < c.heads; ++h) {
          bf16* const sample = energies().sample(pages(s), h, p);
          for (int d = 0; d < c.dim; ++d) sample[d] = round_to<bf16>(normal(random) * normal(random) / static_cast<float>(1 + d));
          if (p % 40 == 7) sample[0] = round_to<bf16>(quiet_nan);  // not seen
        }
      }
    }
  }

  void set_key(std::int64_t t, float x) {
    for (int h = 0; h < c_.heads; ++h) std::fill_n(rows_.key(0, t, h), c_.dim, round_to<E>(x));
  }
  /// All keys are long, and differ by less than a float tells of their products.
  void make_near_equal() {
    for (std::int64_t t = 0; t < tokens_; ++t) {
      E* const key = rows_.key(0, t, 0);
      for (int d = 0; d < c_.dim; ++d) key[d] = round_to<E>(d == 0 ? 256.0f : to_float(key[d]) / 32);
    }
  }
  void forget_queries() { std::fill(energies_.bytes.begin(), energies_.bytes.end(), std::byte{0xff}); }

  void check() const {
    const auto shapes = dci_columns(c_.shape, {c_.page_tokens, c_.dim, 8});
    std::vector<column_memory> here;
    std::vector<device_array<std::byte>> there;
    columns on_host, on_device;
    for (const dci_column k : {column_members, column_member_means, column_links, column_places}) {
      here.emplace_back(shapes[k].pitch(), all_pages(), c_.heads);
      there.emplace_back(here.back().bytes);
      on_host[k] = here.back().array;
      on_device[k] = moved(here.back().array, there.back());
    }
    const device_array<std::byte> there_energies(energies_.bytes);
    index_on_host(on_host);
    index_on_device(on_device, moved(energies_.array, there_energies));
    for (std::size_t k = 0; k < here.size(); ++k) {
      CAPTURE(k);
      CHECK(there[k].read() == here[k].bytes);
    }
  }

 private:
  using columns = std::array<column_array, dci_column_count>;

  const std::int32_t* pages(std::size_t s) const { return rows_.tables()[s].data(); }
  std::int64_t all_pages() const { return static_cast<std::int64_t>(c_.sequences) * tokens_ / c_.page_tokens; }
  energy_column energies() const { return {energies_.array, c_.dim, c_.page_tokens}; }
  bool learns() const { return c_.shape.by == metric::diagonal; }
  static column_array moved(column_array column, const device_array<std::byte>& to) {
    column.data = column.data != nullptr ? to.data() : nullptr;
    return column;
  }

  void index_on_host(const columns& to) const {
    for (std::size_t i = 0; i < c_.sequences * static_cast<std::size_t>(c_.heads); ++i) {
      const std::size_t s = i / static_cast<std::size_t>(c_.heads);
      const auto h = static_cast<int>(i % static_cast<std::size_t>(c_.heads));
      std::vector<query_metric> metrics;
      std::vector<float> values(static_cast<std::size_t>(c_.blocks * c_.dim));
      std::vector<double> sums(static_cast<std::size_t>(c_.dim));
      for (std::int64_t b = 0; b < c_.blocks && learns(); ++b) {
        const std::int64_t end = (b + 1) * c_.shape.block;
        float* const metric = values.data() + b * c_.dim;
        const std::int64_t seen =
            mean_energies(energies(), pages(s), h, std::max<std::int64_t>(end - metric_tokens, 0), end, c_.pairs, sums, metric);
        metrics.push_back({seen > 0 ? metric : nullptr, false});
      }
      dci_head<E> of{rows_.view(), to[column_members], to[column_member_means], to[column_links], pages(s), pages(s), h, c_.sink};
      of.places = to[column_places];
      std::vector<std::byte> scratch(static_cast<std::size_t>(index_blocks_bytes(c_.shape, c_.page_tokens, c_.dim, tokens_)) + 64);
      void* start = scratch.data();
      std::size_t space = scratch.size();
      auto* const aligned = static_cast<std::byte*>(std::align(64, 1, start, space));
      index_blocks<E>(host{.threads = 1}, c_.shape, of, 0, c_.blocks, metrics, {aligned, space});
    }
  }

  /// So many blocks of each sequence at once. Pages of a block's list begin where its metric does, or with the sequence.
  void index_on_device(const columns& to, const column_array& queries) const {
    const test::rows_on_device<E> rows(rows_);
    const test::test_stream stream;
    const device exec{.stream = stream.get()};
    const energy_column asked{learns() ? queries : column_array{}, c_.dim, c_.page_tokens};
    const promoted_on_device promoted(exec, c_.shape, tokens_);
    for (std::int64_t first = 0; first < c_.blocks; first += c_.at_once) {
      const std::int64_t count = std::min(c_.at_once, c_.blocks - first);
      std::vector<block_to_index> list;
      std::vector<run_to_link> of;
      for (std::size_t s = 0; s < c_.sequences; ++s) {
        for (std::int64_t b = first; b < first + count; ++b) {
          const std::int64_t page =
              keeps_links(c_.shape) ? 0 : std::max<std::int64_t>((b + 1) * c_.shape.block - metric_tokens, 0) / c_.page_tokens;
          list.push_back({rows.tables().device[s] + page, page, b, static_cast<std::int32_t>(s), static_cast<std::int32_t>(b - first)});
        }
        of.push_back({rows.tables().device[s], (first + count) * c_.shape.block});
      }
      const device_array<block_to_index> blocks(list);
      const device_array<run_to_link> runs(of);
      scratch_parts size;
      link_arrays(size, std::ssize(list), std::ssize(of), c_.heads, promoted.tokens());
      const device_array<std::byte> memory(static_cast<std::size_t>(size.used));
      if (keeps_links(c_.shape)) {
        scratch_parts parts{memory.data()};
        const link_arrays links(parts, std::ssize(list), std::ssize(of), c_.heads, promoted.tokens());
        link_blocks<E>(exec, c_.shape, rows.view(), to[column_members], to[column_links], c_.sink, false, promoted.tokens(), blocks.data(),
                       std::ssize(list), runs.data(), std::ssize(of), links);
      }
      if (lines_of(c_.shape) > 0) {
        place_keys<E>(exec, c_.shape, rows.view(), to[column_members], to[column_places], c_.sink, false, blocks.data(), std::ssize(list));
      }
      index_blocks<E>(exec, c_.shape, rows.view(), to[column_members], to[column_member_means], asked, c_.pairs, c_.sink, false,
                      blocks.data(), std::ssize(list), to[column_links]);
      stream.wait();
    }
  }

  block_case c_;
  std::int64_t tokens_;
  test::paged_rows<E> rows_;
  column_memory energies_;
};

constexpr rope_pairs halves(int dims) { return {rope_pairs::order::halves, dims}; }

}  // namespace

TEST_CASE("every packing, ranking and metric; pages and blocks of any size; sinks") {
  for (const packing pack : {packing::positional, packing::greedy, packing::bisection}) {
    for (const ranking rank : {ranking::coded_member, ranking::mean_key, ranking::two_level_means}) {
      CAPTURE(static_cast<int>(pack));
      CAPTURE(static_cast<int>(rank));
      const metric by = rank == ranking::mean_key ? metric::keys : metric::diagonal;
      compared_blocks<float>({.shape = {.block = 48, .pack = pack, .by = by, .rank = rank}, .page_tokens = 8, .sink = 16}).check();
    }
  }
  for (const int page : {1, 4, 16, 32}) {
    CAPTURE(page);
    compared_blocks<bf16>({.shape = {.block = 96}, .page_tokens = page, .dim = 11, .sink = 32, .pairs = halves(10)}).check();
  }
  compared_blocks<bf16>({.shape = {.block = 320}, .page_tokens = 64, .dim = 9, .blocks = 4, .sink = 64, .pairs = halves(8)}).check();
}

TEST_CASE("dims of one to many vectors, every element, several heads") {
  for (const int dim : {1, 8, 41}) {
    CAPTURE(dim);
    compared_blocks<kvx::half>({.shape = {.block = 32}, .page_tokens = 8, .dim = dim, .blocks = 1, .heads = 3}).check();
  }
  compared_blocks<bf16>({.shape = {.block = 16}, .page_tokens = 8, .dim = 576, .blocks = 1, .pairs = halves(576)}).check();
}

TEST_CASE("keys that are never found, keys that are equal, zero keys; no query seen") {
  for (const int kind : {0, 1, 2, 3}) {
    CAPTURE(kind);
    for (const packing pack : {packing::greedy, packing::bisection}) {
      compared_blocks<float> x({.shape = {.block = 64, .pack = pack}, .page_tokens = 8, .blocks = 2, .sink = 8});
      for (std::int64_t t = 0; t < 128; ++t) {
        if (kind == 0 && (t % 5 == 1 || t / 64 == 1)) x.set_key(t, t % 2 == 0 ? quiet_nan : t % 3 == 0 ? infinity : 0x1p61f);
        if (kind == 1 && t > 20) x.set_key(t, .375f);
        if (kind == 2) x.set_key(t, 0);
      }
      if (kind == 3) x.forget_queries();
      x.check();
    }
  }
}

TEST_CASE("a tree: links, radii, places and cells, whether blocks enter one by one or together, of several sequences and heads") {
  const dci_shape many{.block = 80,
                       .pack = packing::projection,
                       .by = metric::keys,
                       .rank = ranking::best_member,
                       .first_promotion = 200,
                       .simple = 2,
                       .composite = 3};
  for (const std::int64_t at_once : {1, 3}) {
    compared_blocks<bf16>({.shape = many, .dim = 24, .blocks = 4, .sink = 16, .heads = 2, .sequences = 2, .at_once = at_once}).check();
    compared_blocks<kvx::half>({.shape = many, .dim = 37, .blocks = 3, .at_once = at_once, .aligned = true}).check();
    compared_blocks<float>({.shape = many, .dim = 9, .blocks = 4, .sink = 16, .at_once = at_once}).check();
  }
  dci_shape by_queries = many;
  by_queries.by = metric::diagonal;
  by_queries.rank = ranking::mean_key;
  compared_blocks<bf16>({.shape = by_queries, .dim = 8, .blocks = 2, .pairs = halves(8)}).check();
}

TEST_CASE("links and places of keys that are equal, zero, of norms that grow, or never found") {
  for (const int kind : {0, 1, 2, 3}) {
    CAPTURE(kind);
    compared_blocks<bf16> x(
        {.shape = {.block = 64, .pack = packing::projection, .rank = ranking::best_member, .first_promotion = 150, .composite = 2},
         .page_tokens = 8,
         .blocks = 4,
         .sink = 8,
         .at_once = 2});
    for (std::int64_t t = 0; t < 256; ++t) {
      if (kind == 0) x.set_key(t, t % 3 == 0 ? quiet_nan : t % 7 == 0 ? infinity : t % 5 == 0 ? 0x1p61f : .5f);
      if (kind == 1) x.set_key(t, t < 100 ? 0 : 1);
      if (kind == 2) x.set_key(t, static_cast<float>(t / 16) * .25f);
      if (kind == 3) x.set_key(t, 0x1p-60f);
    }
    x.check();
  }
}

TEST_CASE("parents among promoted tokens that floats cannot tell apart") {
  compared_blocks<bf16> x({.shape = {.block = 64, .pack = packing::projection, .rank = ranking::best_member, .first_promotion = 200},
                           .page_tokens = 8,
                           .dim = 24,
                           .blocks = 4});
  x.make_near_equal();
  x.check();
}

TEST_CASE("a block of 256 tokens as caches have it") {
  compared_blocks<bf16>({.shape = {}, .dim = 64, .blocks = 1, .sink = 32, .pairs = halves(64)}).check();
}

TEST_CASE("queries are written down at every eighth position, and forgotten where tokens are new") {
  constexpr int D = 6, P = 4, H = 2, G = 3;
  const test::paged_rows<float> rows({.heads = H, .page_tokens = P, .key_dim = D, .value_dim = 4, .lengths = {43, 30}});
  const test::rows_on_device<float> there(rows);
  const std::vector<batch_item> items{rows.item(0, 11, 0), rows.item(1, 9, 11)};
  const test::batch_on_device batch(there.tables(), items);
  column_memory column(kvx::column{energy_column::block_bytes(P, D)}.pitch(), 19, H);
  const device_array<std::byte> column_there(column.bytes);
  column_array array = column.array;
  array.data = column_there.data();
  std::vector<float> q(20 * H * G * D);
  std::mt19937 random(3);
  for (float& x : q) x = std::normal_distribution<float>()(random);
  const device_array<float> queries(q);
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  const energy_column on_host{column.array, D, P}, on_device{array, D, P};
  forget_energies(exec, on_device, batch.view());
  stream.wait();
  for (const batch_item& item : items) {
    for (int h = 0; h < H; ++h) forget_energies(on_host, item.pages, h, item.length - item.queries, item.length);
  }
  CHECK(column_there.read() == column.bytes);
  observe_energies(exec, on_device, batch.view(), tensor_view<const float, 3>(queries.data(), 20, H * G, D));
  stream.wait();
  for (const batch_item& item : items) {
    for (std::int64_t p = item.length - item.queries; p < item.length; ++p) {
      for (int h = 0; h < H && p % 8 == 7; ++h)
        group_energies(tensor_view<const float, 3>(q.data(), 20, H * G, D), item.first + p - (item.length - item.queries), h * G, G,
                       on_host.sample(item.pages, h, p));
    }
  }
  CHECK(column_there.read() == column.bytes);
}

TEST_CASE("misuse is refused") {
  const row_view<const float> rows{{}, {}, 1, 16, 8, 8};
  const device exec;
  const auto index = [&](const dci_shape& shape, std::int64_t sink) {
    index_blocks<float>(exec, shape, rows, {}, {}, {}, {}, sink, false, nullptr, 0);
  };
  const auto link = [&](const dci_shape& shape) {
    link_blocks<float>(exec, shape, rows, {}, {}, 0, false, {}, nullptr, 0, nullptr, 0, {});
  };
  CHECK_THROWS_AS(link({}), usage_error);
  CHECK_THROWS_AS(place_keys<float>(exec, {.rank = ranking::best_member}, rows, {}, {}, 0, false, nullptr, 0), usage_error);
  CHECK_THROWS_AS(index({.block = 2048}, 0), usage_error);
  CHECK_THROWS_AS(index({.block = 24}, 0), usage_error);
  CHECK_THROWS_AS(index({.rank = ranking::best_member}, 0), usage_error);
  CHECK_THROWS_AS(index({}, 8), usage_error);
}
