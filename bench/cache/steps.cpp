// What bookkeeping costs beside attention: begin and commit of a batch, and forks, against dense decoding.
//
// usage: steps [<filter>]     prints "name value"; lines that begin with # say under which conditions

#include "../support/machine.hpp"
#include "../support/timing.hpp"
#include "../support/world.hpp"

#include <kvx/kvx.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

using namespace kvx;

namespace {

constexpr int heads = 8, group = 4, dim = 128;

using cache_type = cache<host, full<bf16, dim>>;

/// Keys and values of `tokens` tokens, spectrum and norm as everywhere, and queries near them; every layer takes the same ones.
class rows {
 public:
  explicit rows(std::int64_t tokens) : queries_(bench::world<bf16>(heads, dim, 64).queries(64, group)) {
    const bench::world<bf16> world(heads, dim, 64);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (int h = 0; h < heads; ++h) {
        const bf16* const k = world.rows().key.at(0, h, t % 64);
        const bf16* const v = world.rows().value.at(0, h, t % 64);
        keys_.insert(keys_.end(), k, k + dim);
        values_.insert(values_.end(), v, v + dim);
      }
    }
    out_.resize(queries_.size());
  }

  void append(cache_type& c, const host& exec, step& s, int layers) const {
    for (int layer = 0; layer < layers; ++layer) c.append(exec, s, layer, keys_.data(), values_.data());
  }
  void attend(cache_type& c, const host& exec, const step& s, int layer) { c.attend(exec, s, layer, queries_.data(), out_.data()); }

 private:
  std::vector<bf16> keys_, values_;
  std::vector<float> queries_, out_;
};

/// A sequence of `tokens` tokens, fed in pieces.
sequence prompt(cache_type& c, const host& exec, std::int64_t tokens) {
  constexpr std::int64_t piece = 4096;
  const rows r(piece);
  const sequence s = c.open(exec);
  for (std::int64_t n = 0; n < tokens; n += piece) {
    step step = c.begin(exec, {{s, piece}});
    r.append(c, exec, step, c.geometry().layers);
    c.commit(exec, step);
  }
  return s;
}

/// begin and commit, append and attend left out, of 64 sequences that share a prompt of 4,096 tokens and have gone on apart.
void step_overhead() {
  constexpr int layers = 32, batch = 64, rounds = 101;
  constexpr std::int64_t tokens = 4096;
  const host exec;
  cache_type c(
      exec, {},
      {.layers = layers, .kv_heads = heads, .query_heads = heads * group, .max_tokens = tokens + batch * 128, .max_sequences = batch + 1});
  const sequence first = prompt(c, exec, tokens);
  std::vector<advance> all = {{first, 1}};
  while (all.size() < batch) all.push_back({c.fork(exec, first), 1});
  const sequence single = c.fork(exec, first);

  const rows one_each(batch);
  rows one(1);
  std::vector<double> begin, commit, decode;
  for (int round = -1; round < rounds; ++round) {
    // Layer after layer, as a step visits them: the rows come from memory.
    step alone = c.begin(exec, {{single, 1}});
    one.append(c, exec, alone, layers);
    decode.push_back(bench::seconds([&] { one.attend(c, exec, alone, (round + 1) % layers); }));
    { const step dropped = std::move(alone); }
    step s = c.begin(exec, {});
    begin.push_back(bench::seconds([&] { s = c.begin(exec, all); }));
    one_each.append(c, exec, s, layers);
    commit.push_back(bench::seconds([&] { c.commit(exec, s); }));
    if (round < 0) begin.clear(), commit.clear(), decode.clear();  // the round that touches new memory first
  }
  const double overhead = bench::median(begin) + bench::median(commit), attention = bench::median(decode);
  std::printf("# %d sequences, %d layers: begin %.1f us, commit %.1f us; dense decode of one layer of one sequence %.1f us\n", batch,
              layers, bench::median(begin) * 1e6, bench::median(commit) * 1e6, attention * 1e6);
  std::printf("step_overhead %.2e\n", overhead / (batch * layers * attention));
}

/// A fork of 131,072 tokens against one decode step over them.
void forks() {
  constexpr std::int64_t tokens = 131072;
  const host exec;
  cache_type c(exec, {},
               {.layers = 1,
                .kv_heads = heads,
                .query_heads = heads * group,
                .max_tokens = tokens + 64,
                .max_sequences = 2,
                .max_step_tokens = 4096});
  const sequence s = prompt(c, exec, tokens);
  rows one(1);
  sequence f{};
  std::vector<double> fork, decode;
  for (int round = -1; round < 15; ++round) {
    fork.push_back(bench::seconds([&] { f = c.fork(exec, s); }));
    c.close(exec, f);
    decode.push_back(bench::seconds([&] {
      step step = c.begin(exec, {{s, 1}});
      one.append(c, exec, step, 1);
      one.attend(c, exec, step, 0);
      c.commit(exec, step);
    }));
    c.truncate(exec, s, tokens);
    if (round < 0) fork.clear(), decode.clear();
  }
  std::printf("# fork of %lld tokens %.1f us, decode step of one layer %.2f ms\n", static_cast<long long>(tokens),
              bench::median(fork) * 1e6, bench::median(decode) * 1e3);
  std::printf("fork_rows_copied %lld\n", static_cast<long long>(c.stats().rows_copied));
  std::printf("fork_vs_step %.2e\n", bench::median(fork) / bench::median(decode));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view filter = argc > 1 ? argv[1] : "";
  const auto wanted = [&](std::string_view name) { return name.find(filter) != std::string_view::npos; };
  std::printf("# %d threads, kernels: %s\n", bench::cores(), name_of(simd_level().used));
  if (wanted("step_overhead")) step_overhead();
  if (wanted("fork_rows_copied") || wanted("fork_vs_step")) forks();
}
