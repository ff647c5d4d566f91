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
//                        the query heads and of 96 tokens (eight are not enough: their means differ by .02)
//   ice_keys_scored      inner products of a search with keys or means / tokens of the zone, mean of the KV heads

#include "../support/feed_world.hpp"
#include "../support/machine.hpp"
#include "../support/open_step.hpp"
#include "../support/text_stream.hpp"
#include "../support/timing.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = bench::step_heads, group = bench::step_group, dim = bench::step_dim;
constexpr std::int64_t pages_kept = 12;

using composition = ice_cache<bf16, dim>;
using layout = composition::layout_type;
using cache_type = cache<host, composition>;
constexpr dci_shape tree = composition::index_type::shape;

constexpr std::array<const char*, 4> stage_names = {"resident", "search", "members", "rows"};

/// The step whole and by its parts.
class decoding : public bench::open_step<cache_type> {
 public:
  decoding(cache_type& c, const host& exec, sequence s) : open_step(c, exec, s) {
    ask(bench::text_queries(heads, group, dim, 1));
    const std::int64_t bytes = sizes().used;
    for (memory_block& m : scratch_) m = memory_block(lazy_pages(), bytes + 64);
  }

  /// One attend; the log-sum-exp of each query head.
  std::vector<float> lse_of(attend_options how) {
    std::vector<float> lse(heads * group);
    how.lse = lse.data();
    attend(how);
    return lse;
  }
  void retrieve() { attend({.keep = pages_kept * layout::shape.tokens}); }

  /// See ice_tree_vs_brute; of several tokens' queries, one after the other.
  double against_brute_force() {
    double of_found = 0, of_best = 0;
    for (std::uint64_t token = 0; token < 96; ++token) {
      queries_ = bench::text_queries(heads, group, dim, token);
      const auto all = lse_of({.path = attend_options::route::dense}), none = lse_of({.keep = 0});
      const auto found = lse_of({.keep = pages_kept * layout::shape.tokens});
      const auto best = lse_of({.keep = pages_kept * layout::shape.tokens, .pages = {.probes = static_cast<int>(tokens_)}});
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
    return seconds_of_stages<stage_names.size()>([&](std::int64_t h, auto& seconds) { run_head(h, seconds); });
  }

 private:
  scratch_parts sizes() const {
    scratch_parts s;
    host_pages::attend_parts<pass_through>(s, false, {}, layout::shape, group, tokens_);
    return s;
  }

  void run_head(std::int64_t h, std::array<double, stage_names.size()>& seconds) {
    bench::stage_clock clock(seconds);
    scratch_parts memory{scratch_[static_cast<std::size_t>(h)].data()};
    const host_pages::attend_parts<pass_through> part(memory, false, {}, layout::shape, group, tokens_);
    const std::span stage(part.stage, static_cast<std::size_t>(part.stage_bytes));
    const std::int32_t* const table = pages();
    const auto rows = cache_.view(0);
    head_attention<bf16> attention(rows, {table, tokens_, 1, 0}, composition::zones, 0, h, group, {}, part.head, stage);
    attention.load(tensor_view<const float, 3>(queries_.data(), 1, heads * group, dim));
    attention.residents();
    clock.done();
    block_column_arrays side;
    for (std::size_t c = 0; c < side.size(); ++c) side[c] = cache_.column(0, static_cast<int>(c));
    const dci_head<bf16> index = tree_head<bf16>(rows, side, table, table, h, composition::zones.sink);
    const page_query query{attention.queries(), attention.lse().data(), attention.scale(), attention.zone.begin, attention.zone.end};
    const std::span<std::int32_t> found(part.pages, pages_kept);
    page_search_result& result = results_[static_cast<std::size_t>(h)];
    result = search_pages(host{.threads = 1}, tree, index, {}, query, {.pages = pages_kept}, found, stage);
    clock.done();
    const std::int64_t count = tokens_of(tree, index, found.first(static_cast<std::size_t>(result.found)), part.ids);
    clock.done();
    attention.take({part.ids, static_cast<std::size_t>(count)});
    clock.done();
  }

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
  bench::print_threads();

  const host exec;
  cache_type c(exec, {}, bench::step_geometry(tokens + 8192, 2));
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
