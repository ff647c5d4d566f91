// The search of an index of sign buckets, stage by stage, against reading the columns that it reads.
//
// usage: sign_buckets [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Columns are cold: in a model the columns of one layer are scanned once a step, and between two of its scans lie those of all other layers
// and half a GiB of rows. So before everything that is timed, scan and read alike, a GiB of other memory is read. What follows in a search
// (selection, preparation) finds the scan's scores where it left them. <name>_warm is the same over columns that the caches hold.

#include "../support/machine.hpp"
#include "../support/timing.hpp"

#include <kvx/index/host/sign_buckets.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128;
constexpr std::int64_t tokens = 131072;
constexpr page_shape page{64, dim, dim};
constexpr std::int64_t pages = tokens / page.tokens;

/// Columns of one layer: signs, norms, means, one after the other in one block; any bytes cost the same.
struct layer_columns {
  key_sketch sketch;
  memory_block memory;
  key_columns columns;
  std::vector<std::int32_t> table;

  layer_columns() {
    std::int64_t bytes[3];
    for (int c = 0; c <= column_means; ++c) bytes[c] = block_bytes(sketch, page, static_cast<sketch_column>(c)) * pages * heads;
    memory = memory_block(lazy_pages(), bytes[0] + bytes[1] + bytes[2]);
    std::byte* next = memory.data();
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (int c = 0; c <= column_means; ++c) {
      columns[static_cast<std::size_t>(c)] = {next, bytes[c] / (pages * heads), heads, bytes[c] / heads};
      for (std::int64_t i = 0; i < bytes[c]; i += 8) {
        std::uint64_t x = random();
        if (c == column_norms) {
          for (int j = 0; j < 8; ++j) x = x << 8 | static_cast<std::uint64_t>(std::clamp(160 + 4 * normal(random), 100.f, 200.f));
        }
        if (c == column_means) {
          for (int j = 0; j < 4; ++j) x = x << 16 | round_to<bf16>(normal(random)).bits;
        }
        std::memcpy(next + i, &x, 8);
      }
      next += bytes[c];
    }
    for (std::int64_t i = 0; i < pages; ++i) table.push_back(static_cast<std::int32_t>(i));
  }
  bucket_zone zone(std::int64_t head) const { return {page, columns, head, table.data(), 4, tokens - 256}; }
};

/// Everything that the search of one head needs, ready.
struct head_search {
  bucket_zone zone;
  memory_block memory, counts;
  bucket_query query;
  std::vector<std::uint8_t> scores = std::vector<std::uint8_t>(tokens);
  candidate_cut cut;
  std::vector<std::int32_t> found = std::vector<std::int32_t>(tokens);
};

struct bench_case {
  const layer_columns& layer;
  std::vector<float> q;  // (heads, group, D)
  std::vector<head_search> searches = std::vector<head_search>(heads);
  host exec;

  explicit bench_case(const layer_columns& l) : layer(l) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (int i = 0; i < heads * group * dim; ++i) q.push_back(normal(random));
    for (int h = 0; h < heads; ++h) {
      head_search& s = searches[static_cast<std::size_t>(h)];
      s.zone = layer.zone(h);
      s.memory = memory_block(lazy_pages(), std::max(sign_sum_bytes(dim, group), vote_bytes(layer.sketch, dim)));
      s.counts = memory_block(lazy_pages(), bucket_count_entries(dim) * 4);
    }
  }
  template <class Body>
  void each(const Body& body) {
    for_each_task(exec, heads, [&](std::int64_t h) { body(searches[static_cast<std::size_t>(h)], h); });
  }
  std::span<std::byte> scratch(head_search& s) const { return {s.memory.data(), static_cast<std::size_t>(s.memory.size())}; }
  tensor_view<const float, 2> queries(std::int64_t h) const { return tensor_view<const float, 2>(q.data() + h * group * dim, group, dim); }
  void prepare(bucket_scoring::query of) {
    each([&](head_search& s, std::int64_t h) {
      s.query = prepare_sign_sums(exec, layer.sketch, of, s.zone, {queries(h), queries(h), nullptr, .0884f}, scratch(s));
    });
  }
  /// The scan, and the cut through its scores.
  void scan() {
    each([&](head_search& s, std::int64_t) {
      scan_buckets(exec, s.query, s.zone, s.zone.first_page(), s.zone.last_page(), s.scores);
      s.cut = cut_of(exec, s.scores, tokens / 10);
    });
  }
  void select(double fraction) {
    each([&](head_search& s, std::int64_t) {
      candidate_cut cut = cut_of(exec, s.scores, static_cast<std::int64_t>(fraction * tokens));
      select_candidates(exec, s.scores, 0, cut, s.found.data());
    });
  }
  void count() {
    each([&](head_search& s, std::int64_t) {
      auto* const counts = reinterpret_cast<std::uint32_t*>(s.counts.data());
      std::fill_n(counts, bucket_count_entries(dim), 0u);
      count_buckets(exec, s.zone, s.zone.first_page(), s.zone.last_page(), counts);
    });
  }
  void prepare_votes_of_all() {
    each([&](head_search& s, std::int64_t h) {
      s.query = prepare_votes(exec, layer.sketch, dim, queries(h), reinterpret_cast<std::uint32_t*>(s.counts.data()),
                              window_count({}, tokens), scratch(s));
    });
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  std::printf("# %d threads, kernels: %s%s\n", bench::cores(), name_of(simd_level().used),
              simd_level().refused ? " (KVX_SIMD refused)" : "");
  const layer_columns layer;
  std::printf("# 2 MiB pages hold %.0f %% of the columns\n", 100 * bench::large_page_share(layer.memory.data()));
  bench_case aware(layer), mean(layer), votes(layer);
  aware.prepare(bucket_scoring::query::head_aware);
  mean.prepare(bucket_scoring::query::mean_query);
  votes.count();
  votes.prepare_votes_of_all();
  std::uint64_t sum = 0;
  const memory_block other(lazy_pages(), std::int64_t{1} << 30);
  std::memset(other.data(), 1, static_cast<std::size_t>(other.size()));
  const auto read = [&] { sum += bench::read_bytes(layer.memory.data(), layer.memory.size()); };
  const std::vector<std::function<void()>> contestants = {read,
                                                          [&] { aware.scan(); },
                                                          [&] { mean.scan(); },
                                                          [&] { votes.count(); },
                                                          [&] { votes.scan(); },
                                                          [&] { aware.prepare(bucket_scoring::query::head_aware); },
                                                          [&] { votes.prepare_votes_of_all(); }};
  const auto warm = bench::alternate(contestants, 31);
  std::vector<std::function<void()>> turns;
  for (const auto& contestant : contestants) {
    turns.emplace_back([&] { sum += bench::read_bytes(other.data(), other.size()); });
    turns.push_back(contestant);
  }
  std::vector<double> t = bench::alternate(turns, 15);
  for (std::size_t i = 0; i < contestants.size(); ++i) t[i] = t[2 * i + 1];
  aware.scan();
  const auto select = bench::alternate({[&] { aware.select(.10); }, [&] { aware.select(.05); }, [&] { aware.select(.02); }}, 31);

  const char* const names[] = {"read", "scan_headaware", "scan_mean", "votes_count", "votes_scan", "prepare_headaware", "prepare_votes"};
  for (std::size_t i = 0; i < contestants.size(); ++i)
    std::printf("# %-18s %8.1f us, warm %8.1f us (%llx)\n", names[i], t[i] * 1e6, warm[i] * 1e6, static_cast<unsigned long long>(sum & 15));
  std::printf("# select 10, 5, 2 %%: %.1f, %.1f, %.1f us\n", select[0] * 1e6, select[1] * 1e6, select[2] * 1e6);
  const auto print = [&](const std::string& name, double value) {
    if (name.find(filter) != std::string::npos) std::printf("%s %.3f\n", name.c_str(), value);
  };
  for (const auto& [suffix, x] : {std::pair{"", t}, std::pair{"_warm", warm}}) {
    print(std::string("paris_scan_vs_read") + suffix, x[1] / x[0]);
    print(std::string("headaware_vs_mean_scan") + suffix, x[1] / x[2]);
    print(std::string("paris_votes_vs_signsum") + suffix, (x[3] + x[4]) / x[2]);
    print(std::string("paris_votes_vs_signsum_counts_kept") + suffix, x[4] / x[2]);
  }
}
