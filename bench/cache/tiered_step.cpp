// One decode step in tiers, whole and by its own stages, against dense decoding of the same cache.
//
// usage: tiered_step [<filter>]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: that of paris_step, 131,072 tokens, 32 rows kept, four bits a coordinate of V unless said. Before each step a dense decode reads
// all rows, as the other layers of a model would.
//
//   tiered_speedup_fine            dense decode / step, 7 % candidates (kl_tiered_32_7); _fast: 4 % (kl_tiered_32_4)
//   tiered_speedup_<percent>       the same, 2, 4, 5, 7, 10, 20 %; hard_speedup_<percent>: 256 rows kept and nothing else, in the same
//   cache tiered_speedup_mean_<percent>  candidates of the mean query, 2, 5, 10, 20 %; hard_speedup_mean_<percent> tiered_speedup_fine_v2,
//   _fast_v2    two bits coded_vs_rerank                coded attention of 10 % candidates / their reranking tail_share tail, its members
//   taken out / dense decode fast_bytes_per_token           all columns of a token and KV head: two bits of V, one weight a key, D 64;
//   tiered_bytes_per_token_d128:
//                                  at D 128, beside 512 for rows in bf16

#include "../support/feed_world.hpp"
#include "../support/machine.hpp"
#include "../support/open_step.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

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
#include <utility>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = bench::step_heads, group = bench::step_group, dim = bench::step_dim;
constexpr std::int64_t tokens = 131072, keep = 32;
constexpr int rounds = 15;

template <int ValueBits, bucket_scoring By = bucket_scoring{}>
using composition =
    spec<paris_kv<bf16, dim>::layout_type, sign_buckets<key_sketch{}, By>, rsq_ip<4, tiers{.value_bits = ValueBits, .tail = true}>>;
constexpr bucket_scoring mean_query = {.of = bucket_scoring::query::mean_query};

/// Times of parts of a step, seconds over the threads.
struct stage_times {
  double rerank = 0, coded = 0, tail = 0;
};

/// A sequence of the world's rows, its last token still in a step.
template <int ValueBits, bucket_scoring By = bucket_scoring{}>
class decoding {
 public:
  using spec_type = composition<ValueBits, By>;
  static constexpr page_shape shape = spec_type::layout_type::shape;

  explicit decoding(const host& exec) : exec_(exec), cache_(exec, {}, bench::step_geometry(tokens + 1024)), open_(cache_, exec, fed(exec)) {
    queries_ = bench::queries_near(cache_.view(0), open_.pages(), tokens, 1, group);
    open_.ask(queries_);
  }

  void dense() { open_.dense(); }
  void attend(double fraction, std::int64_t kept, tier_options others) {
    open_.attend({.keep = kept, .breadth = {.fraction = fraction, .per_kept = 0}, .others = others});
  }

  /// The stages that tiers add, and reranking, each after a dense decode.
  stage_times stages(double fraction) {
    std::array<stage_times, heads> each;
    for_each_task(exec_, heads, [&](std::int64_t h) { each[static_cast<std::size_t>(h)] = run_head(h, fraction); });
    stage_times all;
    for (const stage_times& t : each) {
      all.rerank += t.rerank / bench::cores();
      all.coded += t.coded / bench::cores();
      all.tail += t.tail / bench::cores();
    }
    return all;
  }

 private:
  sequence fed(const host& exec) {
    const sequence s = cache_.open(exec);
    bench::feed_world(cache_, exec, s, tokens);
    return s;
  }

  stage_times run_head(std::int64_t h, double fraction) const {
    const host one{.threads = 1};
    const auto rows = cache_.view(0);
    const std::int32_t* const pages = open_.pages();
    key_columns columns;
    value_columns values;
    for (std::size_t c = 0; c < columns.size(); ++c) columns[c] = cache_.column(0, static_cast<int>(c));
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = cache_.column(0, first_value_column + static_cast<int>(c));
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    const float* const q = queries_.data() + h * group * dim;
    std::vector<float> turned(q, q + group * dim), lse(group, 0.0f),
        page_dots(static_cast<std::size_t>((tokens / shape.tokens + 1) * group));
    for (int g = 0; g < group; ++g) rotate(turned.data() + g * dim, dim, spec_type::sketch.seed);
    const tensor_view<const float, 2> plain(q, group, dim), rotated(static_cast<const float*>(turned.data()), group, dim);
    const std::int64_t end = edge(spec_type::zones, tokens, shape.tokens);
    const bucket_zone z{shape, columns, h, pages, spec_type::zones.sink, end};
    std::vector<std::int32_t> ids(tokens), all(tokens);
    memory_block scratch(
        lazy_pages(), 64 + std::max({search_bytes(spec_type::sketch, By, shape, group, tokens),
                                     rerank_scratch(one, rsq_ip<4>{}, dim, group), attend_tiers_scratch(shape, ValueBits, group, tokens)}));
    const std::span stage(scratch.data(), static_cast<std::size_t>(scratch.size()));
    std::int64_t found =
        search_buckets(one, spec_type::sketch, By, z, {rotated, plain, lse.data(), scale}, {.fraction = fraction, .per_kept = 0},
                       candidate_count({.fraction = fraction, .per_kept = 0}, By, end, 0), ids.data(), stage, page_dots.data());
    std::vector<std::int32_t> starts(static_cast<std::size_t>(tier_pages::entries(shape, tokens))), left(starts.size());
    found = find_tails(z, {ids.data(), static_cast<std::size_t>(found)}, {starts.data(), left.data()}, all.data());
    const std::span<const std::int32_t> members(all.data(), static_cast<std::size_t>(found));
    std::vector<float> memory(static_cast<std::size_t>(group * found));
    const tensor_view<float, 2> logits(memory.data(), group, found);
    std::vector<softmax_state> states(group);
    std::vector<float> sums(group * dim);
    const tier_view of{
        z, {starts.data(), left.data()}, values, ValueBits, spec_type::sketch.seed, members, {}, plain, page_dots.data(), scale, 0};
    const auto timed = [&](auto&& work) {
      const auto start = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const auto rank = [&] {
      rerank(one, rsq_ip<4>{}, spec_type::sketch, head_view<bf16>{rows, columns, pages, h},
             {plain, rotated, scale, page_dots.data(), z.first_page()}, members, logits, stage);
    };
    const auto tier = [&](tier_options o) {
      std::fill(states.begin(), states.end(), softmax_state{});
      attend_tiers<ValueBits>(of, o, logits, states, tensor_view<float, 2>(sums.data(), group, dim), stage);
    };
    stage_times t;
    t.rerank = timed(rank);
    t.coded = timed([&] { tier({.coded = true, .tail = false}); });
    rank();
    t.tail = timed([&] { tier({}); }) - t.coded;
    return t;
  }

  const host& exec_;
  cache<host, spec_type> cache_;
  bench::open_step<cache<host, spec_type>> open_;
  std::vector<float> queries_;
};

struct speedup {
  int percent;
  double tiered, hard, dense_seconds;
};
using speedups = std::vector<speedup>;

/// Dense decode over a step, for shares of candidates in percent, all in turns.
template <class Decoding>
speedups measure(Decoding& d, const std::vector<int>& percents) {
  std::vector<std::function<void()>> calls;
  for (const int percent : percents) {
    calls.insert(calls.end(), {[&] { d.dense(); }, [&d, percent] { d.attend(percent / 100.0, keep, {}); }, [&] { d.dense(); },
                               [&d, percent] { d.attend(percent / 100.0, 256, {.coded = false, .tail = false}); }});
  }
  const auto t = bench::alternate(calls, rounds);
  std::vector<double> dense;
  for (std::size_t i = 0; i < t.size(); i += 2) dense.push_back(t[i]);
  const double all = bench::median(dense);
  std::printf("# dense decode %.2f ms\n", all * 1e3);
  speedups result;
  for (std::size_t i = 0; i < percents.size(); ++i) result.push_back({percents[i], all / t[4 * i + 1], all / t[4 * i + 3], all});
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto wanted = [&](std::string_view name) { return name.find(filter) != std::string_view::npos; };
  const auto print = [&](const std::string& name, double value) {
    if (wanted(name)) std::printf("%s %.3f\n", name.c_str(), value);
  };
  bench::print_threads();
  const auto bytes = [](int columns_dim) {
    std::int64_t all = 0;
    for (const column& c : tiered_columns({.bits = 4, .weights = key_sketch::weighting::key}, 2, {64, columns_dim, columns_dim}))
      all += c.pitch();
    return static_cast<double>(all) / 64;
  };
  print("fast_bytes_per_token", bytes(64));
  print("tiered_bytes_per_token_d128", bytes(128));
  const host exec;
  {
    decoding<4> d(exec);
    const speedups all = measure(d, {2, 4, 5, 7, 10, 20});
    for (const auto& [percent, tiered, hard, _] : all) {
      print("tiered_speedup_" + std::to_string(percent), tiered);
      print("hard_speedup_" + std::to_string(percent), hard);
    }
    print("tiered_speedup_fine", all[3].tiered);
    print("tiered_speedup_fast", all[1].tiered);
    std::vector<double> rerank, coded, tail;
    for (int round = 0; round < rounds; ++round) {
      d.dense();
      const stage_times s = d.stages(.10);
      rerank.push_back(s.rerank);
      coded.push_back(s.coded);
      tail.push_back(s.tail);
    }
    std::printf("# 10 %%: rerank %.0f us, coded %.0f us, tail %.0f us, over the threads\n", bench::median(rerank) * 1e6,
                bench::median(coded) * 1e6, bench::median(tail) * 1e6);
    print("coded_vs_rerank", bench::median(coded) / bench::median(rerank));
    print("tail_share", bench::median(tail) / all.front().dense_seconds);
  }
  {
    decoding<4, mean_query> d(exec);
    for (const auto& [percent, tiered, hard, _] : measure(d, {2, 5, 10, 20})) {
      print("tiered_speedup_mean_" + std::to_string(percent), tiered);
      print("hard_speedup_mean_" + std::to_string(percent), hard);
    }
  }
  decoding<2> d(exec);
  const speedups small = measure(d, {4, 7});
  print("tiered_speedup_fine_v2", small[1].tiered);
  print("tiered_speedup_fast_v2", small[0].tiered);
  return 0;
}
