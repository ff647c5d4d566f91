// The stages behind the search of a decode step, each as a share of dense decode over the same tokens.
//
// usage: rsq_ip [<tokens> [<rounds>]]     prints "name value"; lines that begin with # say under which conditions
//
// Setting: D 128, 8 KV heads, 32 query heads, bf16, 131,072 tokens; 10, 5 and 2 % of the tokens drawn at random are the candidates; 512 of
// them are kept and attended beside 260 residents. <stage>_share_<percent>: time of the stage over that of dense decode.

#include "../support/machine.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/attend/host/dense.hpp>
#include <kvx/attend/host/rows.hpp>
#include <kvx/index/host/group_rule.hpp>
#include <kvx/rerank/host/exact.hpp>
#include <kvx/rerank/host/rsq_ip.hpp>
#include <kvx/sketch/host/key_code.hpp>
#include <kvx/sketch/host/top_k.hpp>
#include <kvx/transform/srht.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <span>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128;
constexpr std::int64_t keep = 512;
constexpr key_sketch sketch;

/// What one KV head works with.
struct head_state {
  std::vector<std::int32_t> ids, places, kept;
  std::vector<float> logits, scores, sums;
  std::vector<float> lse = std::vector<float>(group);
  std::vector<softmax_state> states = std::vector<softmax_state>(group);
  std::vector<std::byte> scratch;
};

/// A layer of keys with their codes, and its decode step in stages, each run for all heads by the threads of `exec`.
class step {
 public:
  explicit step(std::int64_t tokens) : tokens_(tokens), world_(heads, dim, tokens), item_(world_.item(tokens, 1)) {
    const page_shape shape{bench::world<bf16>::page_tokens, dim, dim};
    const std::int64_t pages = tokens / shape.tokens;
    const auto columns = sketch_columns(sketch, shape);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      memory_[c] = memory_block(lazy_pages(), columns[c].pitch() * heads * pages);
      columns_[c] = {memory_[c].data(), columns[c].pitch(), heads, columns[c].pitch() * pages};
    }
    std::vector<std::int64_t> all;
    for (std::int64_t p = 0; p < pages; ++p) all.push_back(p);
    const auto encoder = make_key_encoder<bf16, sketch.bits>(sketch, dim);
    for (int h = 0; h < heads; ++h) encode_keys(exec_, encoder, world_.rows(), all.data(), pages, h, nullptr, columns_);
    q_ = rotated_ = world_.queries(1, group);
    for (std::size_t i = 0; i < rotated_.size(); i += dim) rotate(rotated_.data() + i, dim, sketch.seed);
    out_.resize(q_.size());
    dense_scratch_ = memory_block(lazy_pages(), attend_dense_scratch(exec_, world_.rows(), {&item_, 1}, heads * group));
  }

  void draw_candidates(double fraction) {
    std::mt19937 random(7);
    std::bernoulli_distribution taken(fraction);
    for (head_state& s : states_) {
      s.ids.clear();
      for (std::int64_t t = 4; t < tokens_ - 256; ++t) {
        if (taken(random)) s.ids.push_back(static_cast<std::int32_t>(t));
      }
      s.logits.resize(s.ids.size() * group);
      s.scores.resize(s.ids.size());
      s.places.resize(keep);
      s.kept.resize(keep);
      s.sums.resize(group * dim);
      s.scratch.resize(static_cast<std::size_t>(std::max({
          rerank_scratch(one_, rsq_ip<4>{}, dim, group),
          rerank_scratch(one_, exact{}, dim, group),
          group_scores_scratch(one_, {}, group, static_cast<std::int64_t>(s.ids.size())),
          attend_rows_scratch(one_, world_.rows(), group, keep),
      })));
    }
  }

  void dense() {
    attend_dense(exec_, world_.rows(), {&item_, 1}, tensor_view<const float, 3>(q_.data(), 1, heads * group, dim),
                 tensor_view<float, 3>(out_.data(), 1, heads * group, dim), {}, {},
                 std::span(dense_scratch_.data(), static_cast<std::size_t>(dense_scratch_.size())));
  }

  template <class Policy>
  void rerank_with(const Policy& policy, int queries = group) {
    each([&](int h, head_state& s) {
      const head_view<bf16> from{world_.rows(), columns_, item_.pages, h};
      const group_queries asked{head_queries(q_, h, queries), head_queries(rotated_, h, queries), 0};
      rerank(one_, policy, sketch, from, asked, s.ids,
             tensor_view<float, 2>(s.logits.data(), queries, static_cast<std::int64_t>(s.ids.size())), s.scratch);
    });
  }
  void group_rules() {
    each([&](int, head_state& s) {
      const tensor_view<const float, 2> logits(s.logits.data(), group, static_cast<std::int64_t>(s.ids.size()));
      group_scores(one_, {}, logits, s.lse, s.scores, s.scratch);
    });
  }
  void select() {
    each([&](int, head_state& s) {
      const auto taken = static_cast<std::size_t>(top_k(one_, s.scores, keep, std::span(s.places)).taken);
      s.kept.resize(taken);
      for (std::size_t i = 0; i < taken; ++i) s.kept[i] = s.ids[static_cast<std::size_t>(s.places[i])];
    });
  }
  void attend() {
    each([&](int h, head_state& s) {
      const std::array<token_range, 2> residents = {token_range{0, 4}, token_range{tokens_ - 256, tokens_}};
      const tensor_view<float, 2> sums(s.sums.data(), group, dim);
      std::fill(s.states.begin(), s.states.end(), softmax_state{});
      attend_rows(one_, world_.rows(), item_.pages, h, head_queries(q_, h, group), {residents, {}}, {}, s.states, sums, s.scratch);
      for (std::size_t g = 0; g < group; ++g) s.lse[g] = s.states[g].lse();
      attend_rows(one_, world_.rows(), item_.pages, h, head_queries(q_, h, group), {{}, s.kept}, {}, s.states, sums, s.scratch);
    });
  }

 private:
  tensor_view<const float, 2> head_queries(const std::vector<float>& q, int h, int queries) const {
    return tensor_view<const float, 2>(q.data() + std::int64_t{h} * group * dim, queries, dim);
  }
  template <class Body>
  void each(const Body& body) {
    for_each_task(exec_, heads, [&](std::int64_t h) { body(static_cast<int>(h), states_[static_cast<std::size_t>(h)]); });
  }

  host exec_;
  host one_{.threads = 1};
  std::int64_t tokens_;
  bench::world<bf16> world_;
  attend_item item_;
  std::array<memory_block, sketch_column_count> memory_;
  key_columns columns_;
  std::vector<float> q_, rotated_, out_;
  memory_block dense_scratch_;
  std::array<head_state, heads> states_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t tokens = argc > 1 ? std::atoll(argv[1]) / 64 * 64 : 131072;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  if (tokens < 1024 || rounds < 1) {
    std::fprintf(stderr, "usage: rsq_ip [<tokens, at least 1024> [<rounds>]]\n");
    return 2;
  }
  std::printf("# %d threads, kernels: %s, %lld tokens\n", bench::cores(), name_of(simd_level().used), static_cast<long long>(tokens));
  step s(tokens);
  for (const int percent : {10, 5, 2}) {
    s.draw_candidates(percent / 100.0);
    const std::vector<std::function<void()>> stages = {[&] { s.dense(); },
                                                       [&] { s.rerank_with(rsq_ip<4>{}, 1); },
                                                       [&] { s.rerank_with(exact{}); },
                                                       [&] { s.rerank_with(rsq_ip<4>{}); },
                                                       [&] { s.group_rules(); },
                                                       [&] { s.select(); },
                                                       [&] { s.attend(); }};
    const auto t = bench::alternate(stages, rounds);
    std::printf("# dense decode %.2f ms\n", t[0] * 1e3);
    std::printf("exact_share_%d %.4f\n", percent, t[2] / t[0]);
    std::printf("rerank_share_%d %.4f\n", percent, t[3] / t[0]);
    std::printf("group_rule_share_%d %.4f\n", percent, t[4] / t[0]);
    std::printf("top_k_share_%d %.4f\n", percent, t[5] / t[0]);
    std::printf("attend_rows_share_%d %.4f\n", percent, t[6] / t[0]);
    std::printf("rerank_four_heads_vs_one_%d %.3f\n", percent, t[3] / t[1]);
  }
}
