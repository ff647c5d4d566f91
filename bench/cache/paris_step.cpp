// One decode step of retrieval, whole and in stages, against dense decoding of the same cache.
//
// usage: paris_step [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: D 128, 8 KV heads, 32 query heads, bf16, one layer, default (head-aware) candidates, 512 tokens kept. A step is one `attend`;
// before each, a dense decode reads all rows, as the other layers of a model would: columns come from memory, not from a cache.
//
//   paris_step_speedup_<percent>   dense decode / step, 131,072 tokens, so many percent of them candidates
//   paris_step_per_key_growth      (step / key at 524,288 tokens) / (step / key at 131,072), 5 %
//   paris_step_vs_read_5           a plain read of all K and V / step: the step against the machine, for comparisons between programs
//   paris_step_mass_10             of the softmax mass of each query head's exact top 128 what lies among the candidates, mean of the heads

#include "../support/feed_world.hpp"
#include "../support/machine.hpp"
#include "../support/open_step.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = bench::step_heads, group = bench::step_group, dim = bench::step_dim;
constexpr std::int64_t keep = 512;

using composition = paris_kv<bf16, dim>;
using layout = composition::layout_type;
using cache_type = cache<host, composition>;

/// What one KV head of the staged step works with.
struct head_state {
  std::vector<std::int32_t> ids, kept;
  std::vector<float> rotated, page_dots, logits, scores, sums;
  std::vector<softmax_state> states = std::vector<softmax_state>(group);
  std::vector<float> lse = std::vector<float>(group);
  memory_block scratch;
};

/// Stages of a step, in order.
constexpr std::array<const char*, 8> stage_names = {"resident", "prepare", "scan", "select", "rerank", "group rule", "top k", "rows"};

class decoding : public bench::open_step<cache_type> {
 public:
  decoding(cache_type& c, const host& exec, sequence s) : open_step(c, exec, s) {
    ask(bench::queries_near(cache_.view(0), pages(), tokens_ - 1, 1, group));
    const page_shape shape = layout::shape;
    const host one{.threads = 1};
    for (head_state& h : heads_) {
      h.sums.resize(group * dim);
      h.page_dots.resize(static_cast<std::size_t>(tokens_ / shape.tokens + 1) * group);
      h.logits.resize(static_cast<std::size_t>(tokens_) * group);
      h.scores.resize(static_cast<std::size_t>(tokens_));
      h.ids.resize(static_cast<std::size_t>(tokens_));
      h.kept.resize(keep);
      h.scratch = memory_block(
          lazy_pages(),
          64 + std::max({search_bytes(composition::sketch, {}, shape, group, tokens_), rerank_scratch(one, rsq_ip<4>{}, dim, group),
                         group_scores_scratch(one, {}, group, tokens_), attend_rows_scratch(one, cache_.view(0), group, keep)}));
    }
  }

  std::int64_t row_bytes() const { return tokens_ / layout::shape.tokens * cache_.view(0).key.page_stride * 2; }

  void retrieve(double fraction) { attend({.keep = keep, .breadth = {.fraction = fraction, .per_kept = 0}}); }

  /// The step again, by its parts; returns the seconds that each took, all heads together, over the threads.
  std::array<double, stage_names.size()> stages(double fraction) {
    return seconds_of_stages<stage_names.size()>(
        [&](std::int64_t h, std::array<double, stage_names.size()>& seconds) { run_head(h, fraction, seconds); });
  }

  /// See paris_step_mass_10; after stages().
  double mass() {
    std::array<double, heads * group> found{};
    for_each_task(exec_, heads * group, [&](std::int64_t h) {
      const head_state& head = heads_[static_cast<std::size_t>(h / group)];
      const auto [begin, end] = zone();
      std::vector<double> logits(static_cast<std::size_t>(tokens_));
      for (std::int64_t t = begin; t < end; ++t) logits[static_cast<std::size_t>(t)] = logit(h, t);
      std::vector<std::int64_t> best(static_cast<std::size_t>(end - begin));
      std::iota(best.begin(), best.end(), begin);
      const auto before = [&](std::int64_t a, std::int64_t b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
      };
      std::partial_sort(best.begin(), best.begin() + 128, best.end(), before);
      double all = 0, part = 0;
      for (int i = 0; i < 128; ++i) {
        const std::int64_t t = best[static_cast<std::size_t>(i)];
        const double e = std::exp(logits[static_cast<std::size_t>(t)] - logits[static_cast<std::size_t>(best[0])]);
        all += e;
        if (std::binary_search(head.ids.begin(), head.ids.begin() + head_found_[static_cast<std::size_t>(h / group)], t)) part += e;
      }
      found[static_cast<std::size_t>(h)] = part / all;
    });
    std::printf("# candidates hold at least %.4f of the top-128 mass of every query head\n", *std::min_element(found.begin(), found.end()));
    return std::accumulate(found.begin(), found.end(), 0.0) / (heads * group);
  }

 private:
  token_range zone() const { return {layout::zones.sink, edge(layout::zones, tokens_ - 1, layout::shape.tokens)}; }

  double logit(std::int64_t query_head, std::int64_t t) const {
    const bf16* const k = cache_.view(0).key.at(pages()[t / layout::shape.tokens], query_head / group, t % layout::shape.tokens);
    float sum = 0;
    for (int d = 0; d < dim; ++d) sum += queries_[static_cast<std::size_t>(query_head * dim + d)] * to_float(k[d]);
    return static_cast<double>(sum) / std::sqrt(static_cast<double>(dim));
  }

  void run_head(std::int64_t h, double fraction, std::array<double, stage_names.size()>& seconds) {
    head_state& s = heads_[static_cast<std::size_t>(h)];
    auto* const scratch = s.scratch.data();
    const std::span stage(scratch, static_cast<std::size_t>(s.scratch.size()));
    const host one{.threads = 1};
    const auto rows = cache_.view(0);
    const std::int32_t* const table = pages();
    key_columns columns;
    for (std::size_t c = 0; c < columns.size(); ++c) columns[c] = cache_.column(0, static_cast<int>(c));
    bench::stage_clock clock(seconds);

    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    const float* const q = queries_.data() + h * group * dim;
    s.rotated.assign(q, q + group * dim);
    for (int g = 0; g < group; ++g) rotate(s.rotated.data() + g * dim, dim, composition::sketch.seed);
    const tensor_view<const float, 2> plain(q, group, dim), rotated(s.rotated.data(), group, dim);
    const tensor_view<float, 2> sums(s.sums.data(), group, dim);
    std::fill(s.states.begin(), s.states.end(), softmax_state{});
    const auto [begin, end] = zone();
    const token_range resident[] = {{0, begin}, {end, tokens_}};
    attend_rows(one, rows, table, h, plain, {resident, {}}, {}, s.states, sums, stage);
    for (std::size_t g = 0; g < group; ++g) s.lse[g] = s.states[g].lse();
    clock.done();

    const bucket_zone z{layout::shape, columns, h, table, begin, end};
    const std::int64_t wanted = candidate_count({.fraction = fraction, .per_kept = 0}, {}, end - begin, keep);
    scratch_parts memory{scratch};
    const search_parts part(memory, composition::sketch, {}, layout::shape, group, tokens_);
    bucket_query query = prepare_sign_sums(one, composition::sketch, bucket_scoring::query::head_aware, z,
                                           {rotated, plain, s.lse.data(), scale}, {part.query, static_cast<std::size_t>(part.query_bytes)});
    query.page_dots = s.page_dots.data();
    clock.done();
    const std::int64_t first = z.first_page();
    const std::span bytes(part.scores, static_cast<std::size_t>((z.last_page() - first) * layout::shape.tokens));
    scan_buckets(one, query, z, first, z.last_page(), bytes);
    clock.done();
    candidate_cut cut = cut_of(one, bytes, wanted);
    const std::int64_t found = select_candidates(one, bytes, first * layout::shape.tokens, cut, s.ids.data());
    head_found_[static_cast<std::size_t>(h)] = found;
    clock.done();

    const std::span<const std::int32_t> ids(s.ids.data(), static_cast<std::size_t>(found));
    const tensor_view<float, 2> logits(s.logits.data(), group, found);
    rerank(one, rsq_ip<4>{}, composition::sketch, head_view<bf16>{rows, columns, table, h},
           {plain, rotated, scale, s.page_dots.data(), first}, ids, logits, stage);
    clock.done();
    const std::span scores(s.scores.data(), ids.size());
    group_scores(one, {}, read_only(logits), s.lse, scores, stage);
    clock.done();
    const std::int64_t taken = top_k<std::int32_t>(one, scores, keep, s.kept).taken;
    for (std::int64_t i = 0; i < taken; ++i) {
      std::int32_t& place = s.kept[static_cast<std::size_t>(i)];
      place = ids[static_cast<std::size_t>(place)];
    }
    clock.done();
    attend_rows(one, rows, table, h, plain, {{}, {s.kept.data(), static_cast<std::size_t>(taken)}}, {}, s.states, sums, stage);
    clock.done();
  }

  std::array<head_state, heads> heads_;
  std::array<std::int64_t, heads> head_found_{};
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto wanted = [&](std::string_view name) { return name.find(filter) != std::string_view::npos; };
  const auto print = [&](const std::string& name, double value) {
    if (wanted(name)) std::printf("%s %.3f\n", name.c_str(), value);
  };
  constexpr std::int64_t tokens = 131072, many = 524288;
  constexpr int rounds = 15;
  const bool grows = wanted("paris_step_per_key_growth");
  bench::print_threads();

  const host exec;
  const std::int64_t longest = grows ? many : tokens;
  cache_type c(exec, {}, bench::step_geometry(longest + 1024, 2));
  const sequence whole = c.open(exec);
  bench::feed_world(c, exec, whole, longest);
  decoding d(c, exec, c.fork(exec, whole, tokens));
  std::printf("# 2 MiB pages hold %.0f %% of the cache\n", 100 * bench::large_page_share(d.rows()));

  d.stages(.10);
  print("paris_step_mass_10", d.mass());
  std::uint64_t sum = 0;
  const auto t =
      bench::alternate({[&] { d.dense(); }, [&] { d.retrieve(.10); }, [&] { d.dense(); }, [&] { d.retrieve(.05); }, [&] { d.dense(); },
                        [&] { d.retrieve(.02); }, [&] { sum += bench::read_bytes(d.rows(), d.row_bytes()); }},
                       rounds);
  const double dense = bench::median({t[0], t[2], t[4]});
  std::printf("# dense decode %.2f ms, steps %.3f %.3f %.3f ms, read of K and V %.2f ms (%llx)\n", dense * 1e3, t[1] * 1e3, t[3] * 1e3,
              t[5] * 1e3, t[6] * 1e3, static_cast<unsigned long long>(sum & 15));
  for (const double fraction : {.10, .05, .02}) {
    std::array<std::vector<double>, stage_names.size()> times;
    for (int round = 0; round < rounds; ++round) {
      d.dense();
      const auto stages = d.stages(fraction);
      for (std::size_t i = 0; i < stages.size(); ++i) times[i].push_back(stages[i]);
    }
    std::printf("# %2.0f %%:", fraction * 100);
    for (std::size_t i = 0; i < times.size(); ++i) std::printf(" %s %.0f us,", stage_names[i], bench::median(times[i]) * 1e6);
    std::printf(" in sum over the threads\n");
  }
  print("paris_step_speedup_10", dense / t[1]);
  print("paris_step_speedup_5", dense / t[3]);
  print("paris_step_speedup_2", dense / t[5]);
  print("paris_step_vs_read_5", t[6] / t[3]);
  if (!grows) return 0;
  decoding long_one(c, exec, whole);
  const auto u =
      bench::alternate({[&] { d.dense(); }, [&] { d.retrieve(.05); }, [&] { long_one.dense(); }, [&] { long_one.retrieve(.05); }}, rounds);
  std::printf("# 524,288 tokens: dense decode %.2f ms, step %.3f ms; 131,072 beside it: step %.3f ms\n", u[2] * 1e3, u[3] * 1e3,
              u[1] * 1e3);
  print("paris_step_per_key_growth", u[3] / u[1] / 4);
  return 0;
}
