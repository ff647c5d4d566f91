// Coded rows and tails on the device: their softmax and sums are those of the definition, whatever members, marks and pages there are.

#include <kvx/attend/cuda/tiers.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/device_array.cuh"
#include "support/value_code.hpp"

namespace {

using namespace kvx;
using kvx::test::device_array;

constexpr zones cut{.sink = 3, .local = 20};
constexpr std::uint64_t seed = 99;

/// Everything that the kernel reads, at random: one sequence and new token, `heads` KV heads.
///
/// share       of the tokens that are members; page 1 has one, page 2 all of them, all of page 3 are marked
struct tier_world {
  int P, Dv, heads, group;
  std::int64_t length;
  double share;
  bool residents = true;
  float spread = 2;

  token_zone zone = {};
  std::int64_t pages = 0, pitch = 0;
  std::vector<std::int32_t> table = {}, ids = {}, counts = {};
  std::vector<tier_page> pages_of = {};  // (heads, pages + 1)
  std::vector<std::uint8_t> marks = {};
  std::vector<float> logits = {}, scores = {}, dots = {}, plain = {}, sums = {};
  std::vector<softmax_state> states = {};
  value_columns columns = {};
  std::array<std::vector<std::byte>, value_column_count> bytes = {};

  template <int Bits>
  void fill() {
    std::mt19937 random(static_cast<unsigned>(P * 1000 + Dv + group));
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<double> uniform;
    zone = zone_of({nullptr, length, 1, 0}, 0, cut, P, 0);
    const std::int64_t first = zone.begin / P;
    pages = ceil_div(zone.end, std::int64_t{P}) - first;
    pitch = round_up(zone.end - zone.begin, 32);
    table.resize(static_cast<std::size_t>(ceil_div(length, std::int64_t{P})));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    for (int c = 0; c < value_column_count; ++c) {
      const column of{value_block_bytes(Bits, {P, 8, Dv}, static_cast<value_column>(c))};
      auto& to = bytes[static_cast<std::size_t>(c)];
      to.resize(static_cast<std::size_t>(of.pitch() * heads) * table.size());
      for (std::byte& b : to) b = static_cast<std::byte>(random());
      columns[static_cast<std::size_t>(c)] = {to.data(), of.pitch(), heads, of.pitch() * std::ssize(table)};
      for (std::size_t i = 0; c != value_codes && to.size() > i + 1; i += 2) {
        const std::uint16_t x =
            c == value_scales ? round_to<kvx::half>(.1f + std::abs(normal(random))).bits : round_to<bf16>(normal(random)).bits;
        std::memcpy(to.data() + i, &x, 2);
      }
    }
    ids.assign(static_cast<std::size_t>(heads * pitch), -1);
    for (int h = 0; h < heads; ++h) {
      std::int32_t count = 0;
      for (std::int64_t j = 0; j <= pages; ++j) {
        const std::int64_t begin = std::max(zone.begin, (first + j) * P), end = std::min(zone.end, (first + j + 1) * P);
        pages_of.push_back({count, j < pages && end - begin == P && random() % 9 != 0 ? P : 0});
        for (std::int64_t t = begin; j < pages && t < end; ++t) {
          const bool is = j == 1 ? t == begin : j == 2 || j == 3 || uniform(random) < share;
          if (!is) continue;
          ids[static_cast<std::size_t>(h * pitch + count)] = static_cast<std::int32_t>(t);
          ++count;
        }
      }
      counts.push_back(count);
    }
    marks.resize(ids.size());
    scores.resize(ids.size());
    logits.resize(ids.size() * static_cast<std::size_t>(group));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      marks[i] = random() % 4 == 0 || ids[i] / P - first == 3 ? 1 : 0;
      scores[i] = static_cast<float>(uniform(random));
    }
    for (float& x : logits) x = spread * normal(random);
    for (std::int64_t i = 0; i < heads * pages * group; ++i) dots.push_back(normal(random));
    for (int i = 0; i < heads * group * 8; ++i) plain.push_back(normal(random));
    for (int i = 0; i < heads * group; ++i)
      states.push_back(residents ? softmax_state{normal(random), 1 + static_cast<float>(uniform(random))} : softmax_state{});
    for (int i = 0; i < heads * group * Dv; ++i) sums.push_back(residents ? normal(random) : quiet_nan);
  }
};

/// What remains: lse (heads, G) and divided sums.
struct tier_result {
  std::vector<double> lse, out;
};

template <int Bits>
tier_result by_definition(const tier_world& w, const tier_options& o, float scale, float cap, bool skips) {
  tier_result r;
  const auto capped = [&](double x) { return cap > 0 ? static_cast<double>(cap) * std::tanh(x / static_cast<double>(cap)) : x; };
  for (int h = 0; h < w.heads; ++h) {
    for (int g = 0; g < w.group; ++g) {
      const auto unit = static_cast<std::size_t>(h * w.group + g);
      struct part {
        double logit, times;
        std::vector<double> value;
      };
      std::vector<part> all;
      if (w.states[unit].sum != 0) {
        std::vector<double> v;
        for (int d = 0; d < w.Dv; ++d)
          v.push_back(static_cast<double>(w.sums[unit * static_cast<std::size_t>(w.Dv) + static_cast<std::size_t>(d)]) /
                      static_cast<double>(w.states[unit].sum));
        all.push_back({static_cast<double>(w.states[unit].max) + std::log(static_cast<double>(w.states[unit].sum)), 1, v});
      }
      float largest = 0;
      for (std::size_t d = 0; d < 8; ++d) largest = std::max(largest, std::abs(w.plain[unit * 8 + d]));
      const double page_unit = static_cast<double>(scale) * power_of_two(exponent_of(largest) + 1);
      for (std::int64_t j = 0; j < w.pages; ++j) {
        const tier_page now = w.pages_of[static_cast<std::size_t>(h * (w.pages + 1) + j)],
                        next = w.pages_of[static_cast<std::size_t>(h * (w.pages + 1) + j + 1)];
        const page_values<false> page = values_of(w.columns, w.table[static_cast<std::size_t>(w.zone.begin / w.P + j)], h);
        std::vector<double> mean;
        for (int d = 0; d < w.Dv; ++d) mean.push_back(static_cast<double>(to_float(page.means[d])));
        const double term = page_unit * static_cast<double>(w.dots[static_cast<std::size_t>((h * w.pages + j) * w.group + g)]);
        double members = 0;
        int left = now.tokens;
        for (std::int32_t t = now.start; t < next.start; ++t) {
          const auto at = static_cast<std::size_t>(h * w.pitch + t);
          const double logit = static_cast<double>(w.logits[static_cast<std::size_t>((h * w.group + g) * w.pitch + t)]);
          if (!o.coded && w.marks[at] == 0) continue;
          members += logit - term;
          --left;
          if (w.marks[at] != 0) continue;
          all.push_back({capped(logit), 1, mean});
          if (skips && w.scores[at] < o.skip / static_cast<float>(w.counts[static_cast<std::size_t>(h)])) continue;
          if constexpr (Bits > 0) {
            const std::int64_t slot = w.ids[at] % w.P;
            const auto v = kvx::test::decoded_value<Bits>(page.codes + slot * value_row_bytes(Bits, w.Dv), page.scales[slot], w.Dv, seed);
            for (std::size_t d = 0; d < v.size(); ++d) all.back().value[d] += v[d];
          }
        }
        if (o.tail && left >= fewest_in_tail) all.push_back({capped(term - members / left), static_cast<double>(left), mean});
      }
      double top = -1e300, sum = 0;
      for (const part& p : all) top = std::max(top, p.logit);
      std::vector<double> out(static_cast<std::size_t>(w.Dv));
      for (const part& p : all) {
        sum += p.times * std::exp(p.logit - top);
        for (std::size_t d = 0; d < out.size(); ++d) out[d] += p.times * std::exp(p.logit - top) * p.value[d];
      }
      r.lse.push_back(all.empty() ? -1e300 : top + std::log(sum));
      for (const double x : out) r.out.push_back(sum > 0 ? x / sum : 0);
    }
  }
  return r;
}

/// States and sums behind the kernel, run twice from the same residents: the same bits.
struct tier_run {
  std::vector<softmax_state> states;
  std::vector<float> sums;
};

template <int Bits>
tier_run on_device(const tier_world& w, const tier_options& o, float scale, float cap, group_rule rule) {
  const page_shape page{w.P, 8, w.Dv};
  const device_array<std::int32_t> table(w.table), ids(w.ids), counts(w.counts), entry(std::vector<std::int32_t>{0});
  const device_array<batch_item> items(std::vector<batch_item>{{table.data(), w.length, 1, 0}});
  const device_array<tier_page> pages(w.pages_of);
  const device_array<std::uint8_t> marks(w.marks);
  const device_array<float> logits(w.logits), scores(w.scores), dots(w.dots), plain(w.plain);
  std::array<device_array<std::byte>, value_column_count> bytes;
  value_columns columns = w.columns;
  for (std::size_t c = 0; c < bytes.size(); ++c) {
    bytes[c] = device_array<std::byte>(w.bytes[c]);
    columns[c].data = bytes[c].data();
  }
  device_batch batch{items.data(), entry.data(), 1, 1, 1, w.length};
  tier_members members;
  members.ids = ids.data();
  members.counts = counts.data();
  members.pages = pages.data();
  members.id_pitch = w.pitch;
  members.page_pitch = w.pages;
  rerank_input in;
  in.plain = plain.data();
  in.page_dots = dots.data();
  in.page_pitch = w.pages;
  in.scale = scale;
  rerank_output ranked;
  ranked.heads = w.heads;
  ranked.group = w.group;
  ranked.marks = marks.data();
  ranked.logits = logits.data();
  ranked.scores = scores.data();
  ranked.pitch = w.pitch;
  scratch_parts size;
  const tier_scratch planned(size, w.heads, w.group, w.length + 5000, page);  // for more than there is
  const device_array<std::byte> memory(static_cast<std::size_t>(size.used));
  scratch_parts parts{memory.data()};
  const tier_scratch scratch(parts, w.heads, w.group, w.length + 5000, page);
  CHECK(scratch.pieces == planned.pieces);
  const auto tickets = static_cast<std::size_t>(attend_tiers_tickets(w.heads, w.group));
  const device_array<unsigned> counters(std::vector<unsigned>(tickets, 0));
  tier_run r;
  for (int run = 0; run < 2; ++run) {
    const device_array<softmax_state> states(w.states);
    const device_array<float> sums(w.sums);
    attend_tiers<Bits>(device{}, page, cut, seed, batch, members, in, ranked, rule, columns, o, cap, states.data(), sums.data(), scratch,
                       counters.data());
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    for (const unsigned n : counters.read()) CHECK(n == 0);
    const tier_run now{states.read(), sums.read()};
    if (run > 0) {
      CHECK(now.states == r.states);
      CHECK(std::memcmp(now.sums.data(), r.sums.data(), now.sums.size() * 4) == 0);
    }
    r = now;
  }
  return r;
}

/// Scores of some nats, values below 10: 3e-5 of them.
template <int Bits>
void check(tier_world w, const tier_options& o = {.skip = 0}, float cap = 0, group_rule rule = {}) {
  w.template fill<Bits>();
  const float scale = .3f;
  const tier_run got = on_device<Bits>(w, o, scale, cap, rule);
  const bool skips = o.skip > 0 && cap <= 0 && rule.by == group_rule::kind::softmax_sum;
  const tier_result expected = by_definition<Bits>(w, o, scale, cap, skips);
  double worst = 0;
  const auto compare = [&](double x, double y) {
    const double error = std::abs(x - y) / (3e-5 + 3e-6 * std::abs(y));
    worst = std::isnan(error) ? 1e9 : std::max(worst, error);
  };
  for (std::size_t i = 0; i < got.states.size(); ++i) {
    compare(static_cast<double>(got.states[i].lse()), expected.lse[i]);
    for (std::size_t d = 0; d < static_cast<std::size_t>(w.Dv); ++d) {
      const std::size_t at = i * static_cast<std::size_t>(w.Dv) + d;
      compare(static_cast<double>(got.sums[at]) / static_cast<double>(got.states[i].sum), expected.out[at]);
    }
  }
  CAPTURE(w.P);
  CAPTURE(w.Dv);
  CAPTURE(w.group);
  CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("dims of values, two and four bits, groups, pages; with residents and without") {
  int turn = 0;
  for (const int Dv : {1, 3, 8, 13, 40, 64, 80, 128, 136, 200, 576}) {
    check<4>({.P = 16, .Dv = Dv, .heads = 1, .group = 1 + turn % 5, .length = 200, .share = .2, .residents = turn % 2 == 0});
    check<2>({.P = 32, .Dv = Dv, .heads = 2, .group = 1 + turn % 3, .length = 260, .share = .3, .residents = turn % 3 != 0});
    ++turn;
  }
  for (const int P : {1, 2, 8, 64, 1024})
    check<4>({.P = P, .Dv = 24, .heads = 2, .group = 2, .length = P == 1024 ? 5000 : 300, .share = .2});
}

TEST_CASE("many pieces, all members, hardly any; more heads than a block takes") {
  check<4>({.P = 8, .Dv = 12, .heads = 1, .group = 2, .length = 5000, .share = .05});
  check<2>({.P = 64, .Dv = 12, .heads = 1, .group = 13, .length = 700, .share = 1});
  check<4>({.P = 16, .Dv = 12, .heads = 3, .group = 1, .length = 700, .share = 0, .spread = 20});
}

TEST_CASE("coded rows alone, the tail alone, means alone; soft caps; values that are skipped, and those that never are") {
  const tier_world w{.P = 16, .Dv = 20, .heads = 2, .group = 3, .length = 400, .share = .3};
  check<4>(w, {.coded = true, .tail = false, .skip = 0});
  check<4>(w, {.coded = false, .tail = true, .skip = 0});
  check<0>(w, {.coded = false, .tail = true, .skip = 0});
  check<4>(w, {.skip = 0}, 1.5f);
  check<4>(w, {.skip = 60});
  check<2>(w, {.skip = 60}, 1.5f);
  check<2>(w, {.skip = 60}, 0, {group_rule::kind::max});
}

TEST_CASE("what is all taken out adds nothing, bit for bit") {
  tier_world w{.P = 16, .Dv = 20, .heads = 2, .group = 3, .length = 400, .share = 1};
  w.fill<4>();
  std::fill(w.marks.begin(), w.marks.end(), std::uint8_t{1});
  for (int h = 0; h < 2; ++h) w.pages_of[static_cast<std::size_t>(h * (w.pages + 1) + 1)].tokens = 0;  // of one member
  const tier_run got = on_device<4>(w, {}, .3f, 0, {});
  CHECK(got.states == w.states);
  CHECK(got.sums == w.sums);
  std::fill(w.counts.begin(), w.counts.end(), 0);  // no key is found
  CHECK(on_device<4>(w, {}, .3f, 0, {}).sums == w.sums);
}

TEST_CASE("pages that are too long are refused") {
  CHECK_THROWS_AS(attend_tiers<4>({}, {2048, 8, 8}, cut, seed, {}, {}, {}, {}, {}, {}, {}, 0, nullptr, nullptr, {}, nullptr), usage_error);
}
