// One decode step of retrieval from semantic pages, whole and in stages, against dense decoding of the same cache.
//
// usage: ice_step [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: D 128, 8 KV heads, 32 query heads, bf16, one layer, kvx::ice_cache with 12 of 8,190 pages found, 131,104 tokens: 131,040 of them
// in the retrieval zone; keys and queries lie like those of a text (text_stream.hpp). A step is one `attend`; before each, a dense decode
// reads all rows, as the other layers of a model would.
//
//   ice_step_speedup     dense decode / step: search, selection, attention over 16 pages
//   ice_search_share     search / whole of the step's stages
//   ice_tree_vs_brute    share of the zone's softmax mass in the pages found / in those that looking at every token finds, each the mean of
//                        the query heads and of eight tokens
//   ice_keys_scored      inner products of a search with keys or means / tokens of the zone, mean of the KV heads

#include "../support/feed_world.hpp"
#include "../support/machine.hpp"
#include "../support/text_stream.hpp"
#include "../support/timing.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128;
constexpr std::int64_t pages_kept = 12;

using composition = ice_cache<bf16, dim>;
using layout = composition::layout_type;
using cache_type = cache<host, composition>;
constexpr dci_shape tree = composition::index_type::shape;

constexpr std::array<const char*, 4> stage_names = {"resident", "search", "members", "rows"};

/// A sequence of the cache, its last token still in a step.
class decoding {
 public:
  decoding(cache_type& c, const host& exec, sequence s)
      : cache_(c), exec_(exec), sequence_(s), tokens_(c.length(s) + 1), step_(c.begin(exec, {{s, 1}})) {
    const std::vector<bf16> row(heads * dim, round_to<bf16>(.5f));
    cache_.append(exec_, step_, 0, row.data(), row.data());
    queries_ = bench::text_queries(heads, group, dim, 1);
    out_.resize(queries_.size());
    const std::int64_t bytes = sizes().used;
    for (memory_block& m : scratch_) m = memory_block(lazy_pages(), bytes + 64);
  }

  const std::byte* rows() const { return reinterpret_cast<const std::byte*>(cache_.view(0).key.data); }

  /// One attend; the log-sum-exp of each query head.
  std::vector<float> attend(const attend_options& how) {
    std::vector<float> lse(heads * group);
    attend_options with = how;
    with.lse = lse.data();
    cache_.attend(exec_, step_, 0, queries_.data(), out_.data(), with);
    return lse;
  }
  void dense() { attend({.path = attend_options::route::dense}); }
  void retrieve() { attend({.keep = pages_kept * layout::shape.tokens}); }

  /// See ice_tree_vs_brute; of several tokens' queries, one after the other.
  double against_brute_force() {
    double of_found = 0, of_best = 0;
    for (std::uint64_t token = 0; token < 8; ++token) {
      queries_ = bench::text_queries(heads, group, dim, token);
      const auto all = attend({.path = attend_options::route::dense}), none = attend({.keep = 0});
      const auto found = attend({.keep = pages_kept * layout::shape.tokens});
      const auto best = attend({.keep = pages_kept * layout::shape.tokens, .pages = {.probes = static_cast<int>(tokens_)}});
      for (std::size_t h = 0; h < all.size(); ++h) {
        const auto part = [&](const std::vector<float>& lse) { return std::exp(static_cast<double>(lse[h] - all[h])); };
        const double zone = 1 - part(none);
        of_found += (part(found) - part(none)) / zone;
        of_best += (part(best) - part(none)) / zone;
      }
    }
    return of_found / of_best;
  }

  double keys_scored() const {
    std::int64_t products = 0;
    for (const page_search_result& r : results_) products += r.keys + r.means;
    return static_cast<double>(products) / heads / static_cast<double>(tokens_);
  }

  /// The step again, by its parts; returns the seconds that each took, all heads together, over the threads.
  std::array<double, stage_names.size()> stages() {
    std::array<std::array<double, stage_names.size()>, heads> each{};
    for_each_task(exec_, heads, [&](std::int64_t h) { run_head(h, each[static_cast<std::size_t>(h)]); });
    std::array<double, stage_names.size()> sum{};
    for (const auto& one : each) std::transform(one.begin(), one.end(), sum.begin(), sum.begin(), std::plus<>());
    for (double& x : sum) x /= bench::cores();
    return sum;
  }

 private:
  scratch_parts sizes() const {
    scratch_parts s;
    host_pages::attend_parts<pass_through>(s, false, {}, layout::shape, group, tokens_);
    return s;
  }

  void run_head(std::int64_t h, std::array<double, stage_names.size()>& seconds) {
    auto last = std::chrono::steady_clock::now();
    std::size_t next = 0;
    const auto done = [&] {
      const auto now = std::chrono::steady_clock::now();
      seconds[next++] = std::chrono::duration<double>(now - last).count();
      last = now;
    };
    scratch_parts memory{scratch_[static_cast<std::size_t>(h)].data()};
    const host_pages::attend_parts<pass_through> part(memory, false, {}, layout::shape, group, tokens_);
    const std::span stage(part.stage, static_cast<std::size_t>(part.stage_bytes));
    const std::int32_t* const pages = cache_.pages(0, sequence_).data();
    const auto rows = cache_.view(0);
    head_attention<bf16> attention(rows, {pages, tokens_, 1, 0}, composition::zones, 0, h, group, {}, part.head, stage);
    attention.load(tensor_view<const float, 3>(queries_.data(), 1, heads * group, dim));
    attention.residents();
    done();
    block_column_arrays side;
    for (std::size_t c = 0; c < side.size(); ++c) side[c] = cache_.column(0, static_cast<int>(c));
    const dci_head<bf16> index = tree_head<bf16>(rows, side, pages, pages, h, composition::zones.sink);
    const page_query query{attention.queries(), attention.lse().data(), attention.scale(), attention.zone.begin, attention.zone.end};
    const std::span<std::int32_t> found(part.pages, pages_kept);
    page_search_result& result = results_[static_cast<std::size_t>(h)];
    result = search_pages(host{.threads = 1}, tree, index, {}, query, {.pages = pages_kept}, found, stage);
    done();
    const std::int64_t count = tokens_of(tree, index, found.first(static_cast<std::size_t>(result.found)), part.ids);
    done();
    attention.take({part.ids, static_cast<std::size_t>(count)});
    done();
  }

  cache_type& cache_;
  const host& exec_;
  sequence sequence_;
  std::int64_t tokens_;
  step step_;
  std::vector<float> queries_, out_;
  std::array<memory_block, heads> scratch_;
  std::array<page_search_result, heads> results_{};
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto print = [&](std::string_view name, double value) {
    if (name.find(filter) != std::string_view::npos) std::printf("%s %.3f\n", std::string(name).c_str(), value);
  };
  constexpr std::int64_t tokens = 131072 + 32;
  constexpr int rounds = 15;
  static_assert(!keeps_links(tree), "the staged step searches without lists");
  std::printf("# %d threads, kernels: %s%s\n", bench::cores(), name_of(simd_level().used),
              simd_level().refused ? " (KVX_SIMD refused)" : "");

  const host exec;
  cache_type c(exec, {},
               {.layers = 1,
                .kv_heads = heads,
                .query_heads = heads * group,
                .max_tokens = tokens + 8192,
                .max_sequences = 2,
                .kinds = {layer_kind::retrieve()},
                .max_step_tokens = 4096});
  const sequence whole = c.open(exec);
  bench::feed_world<bench::text_stream>(c, exec, whole, 131072 + 4096);
  decoding d(c, exec, c.fork(exec, whole, tokens));
  std::printf("# 2 MiB pages hold %.0f %% of the cache\n", 100 * bench::large_page_share(d.rows()));

  print("ice_tree_vs_brute", d.against_brute_force());
  d.stages();
  print("ice_keys_scored", d.keys_scored());
  const auto t = bench::alternate({[&] { d.dense(); }, [&] { d.retrieve(); }}, rounds);
  std::printf("# dense decode %.2f ms, step %.3f ms\n", t[0] * 1e3, t[1] * 1e3);
  print("ice_step_speedup", t[0] / t[1]);
  std::array<std::vector<double>, stage_names.size()> times;
  for (int round = 0; round < rounds; ++round) {
    d.dense();
    const auto stages = d.stages();
    for (std::size_t i = 0; i < stages.size(); ++i) times[i].push_back(stages[i]);
  }
  double all = 0;
  std::printf("#");
  for (std::size_t i = 0; i < times.size(); ++i) {
    all += bench::median(times[i]);
    std::printf(" %s %.0f us,", stage_names[i], bench::median(times[i]) * 1e6);
  }
  std::printf(" in sum over the threads\n");
  print("ice_search_share", bench::median(times[1]) / all);
  return 0;
}
