// Attention over chosen rows on the device equals its definition, whatever is chosen, in whatever pieces it is taken.

#include <kvx/attend/cuda/rows.cuh>
#include <kvx/backend/device.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/chosen_rows.hpp"
#include "support/dense_result.hpp"
#include "support/paged_rows.hpp"

namespace {

using namespace kvx;
using kvx::test::batch_on_device;
using kvx::test::device_array;
using kvx::test::paged_rows;
using kvx::test::paged_shape;
using kvx::test::query_rows;
using kvx::test::rows_on_device;
using kvx::test::rows_reference;

/// One unit's rows, as the test names them.
struct chosen_set {
  std::vector<token_range> ranges;  // two at most
  std::vector<std::int32_t> ids;
};

std::vector<std::int32_t> some_of(std::int64_t tokens, double share, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (std::uniform_real_distribution<double>()(random) < share) ids.push_back(static_cast<std::int32_t>(t));
  }
  return ids;
}

/// A partial attention of every unit on the device, and what calls need beside it.
template <class E, class T>
class partial {
 public:
  partial(const paged_rows<E>& rows, const std::vector<batch_item>& items, const query_rows<T>& q)
      : there_(rows),
        batch_(there_.tables(), items),
        n_(q.n),
        heads_(q.heads),
        group_(q.heads / rows.view().heads),
        units_(q.n * rows.view().heads),
        dim_(rows.view().value_dim),
        q_(q.data),
        states_(std::vector<softmax_state>(static_cast<std::size_t>(q.n * q.heads))),
        sums_(static_cast<std::size_t>(q.n * q.heads * rows.view().value_dim)),  // NaN: sums of nothing are not read
        q_view_(q_.data(), q.n, q.heads, q.dim) {
    const auto tickets = attend_rows_tickets(device{}, rows.view(), n_, heads_);
    tickets_ = device_array<unsigned>(std::vector<unsigned>(static_cast<std::size_t>(tickets)));
  }

  /// Sets of all units; `more` rows are planned beyond the largest.
  void take(const std::vector<chosen_set>& sets, const row_options& o = {}, std::int64_t more = 0) {
    std::vector<token_range> ranges(2 * sets.size());
    for (std::size_t u = 0; u < sets.size(); ++u)
      std::copy(sets[u].ranges.begin(), sets[u].ranges.end(), ranges.begin() + static_cast<std::ptrdiff_t>(2 * u));
    std::int64_t most = 0;
    for (const chosen_set& s : sets) {
      auto n = static_cast<std::int64_t>(s.ids.size());
      for (const token_range& r : s.ranges) n += r.size();
      most = std::max(most, n);
    }
    put_ids(sets);
    const device_array<token_range> ranges_there(ranges);
    scratch_for(most + more);
    attend_rows<E, T>(device{}, there_.view(), batch_.view(), q_view_, {ranges_there.data(), ids(), most + more}, o, states_.data(),
                      sums_.data(), {scratch_.data(), scratch_.size()}, {tickets_.data(), tickets_.size()});
    check_tickets();
  }

  /// Ids alone, merged with what was taken, to the output.
  test::dense_result<T> choose(const std::vector<chosen_set>& sets, const row_options& o = {}, bool residents = true, bool lse = true) {
    put_ids(sets);
    const device_array<T> out(static_cast<std::size_t>(units_ * group_ * dim_));
    const device_array<float> lse_there(static_cast<std::size_t>(n_ * heads_));
    scratch_for(ids().most);
    attend_chosen<E, T>(device{}, there_.view(), batch_.view(), q_view_, ids(), o, residents ? states_.data() : nullptr,
                        residents ? sums_.data() : nullptr, tensor_view<T, 3>(out.data(), n_, heads_, dim_),
                        lse ? tensor_view<float, 2>(lse_there.data(), n_, heads_) : tensor_view<float, 2>{},
                        {scratch_.data(), scratch_.size()}, {tickets_.data(), tickets_.size()});
    check_tickets();
    return {out.read(), lse_there.read()};
  }

  /// What was taken, divided.
  test::dense_result<T> finished() const {
    const device_array<T> out(static_cast<std::size_t>(units_ * group_ * dim_));
    finish_rows<T>(device{}, states_.data(), sums_.data(), tensor_view<T, 2>(out.data(), units_ * group_, dim_));
    std::vector<float> lse;
    for (const softmax_state& s : states_.read()) lse.push_back(s.lse());
    return {out.read(), lse};
  }
  std::vector<float> sums() const { return sums_.read(); }
  std::vector<softmax_state> states() const { return states_.read(); }
  std::int64_t group() const { return group_; }
  std::int64_t units() const { return units_; }

 private:
  void put_ids(const std::vector<chosen_set>& sets) {
    std::size_t pitch = 1;
    for (const chosen_set& s : sets) pitch = std::max(pitch, s.ids.size() + 3);
    std::vector<std::int32_t> ids(sets.size() * pitch, -1), counts;
    for (std::size_t u = 0; u < sets.size(); ++u) {
      std::copy(sets[u].ids.begin(), sets[u].ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(u * pitch));
      counts.push_back(static_cast<std::int32_t>(sets[u].ids.size()));
    }
    ids_ = device_array<std::int32_t>(ids);
    counts_ = device_array<std::int32_t>(counts);
    pitch_ = static_cast<std::int64_t>(pitch);
    most_ids_ = *std::max_element(counts.begin(), counts.end());
  }
  row_ids ids() const { return {ids_.data(), counts_.data(), pitch_, most_ids_}; }
  void scratch_for(std::int64_t most) {
    // Scratch full of NaN, exactly as large as promised: what is not written first must not be read.
    scratch_ = device_array<std::byte>(static_cast<std::size_t>(attend_rows_scratch(device{}, there_.view(), n_, heads_, most)));
  }
  void check_tickets() const {
    for (const unsigned t : tickets_.read()) CHECK(t == 0);
  }

  rows_on_device<E> there_;
  batch_on_device batch_;
  std::int64_t n_, heads_, group_, units_, dim_, pitch_ = 0, most_ids_ = 0;
  device_array<T> q_;
  device_array<softmax_state> states_;
  device_array<float> sums_;
  tensor_view<const T, 3> q_view_;
  device_array<unsigned> tickets_;
  device_array<std::byte> scratch_;
  device_array<std::int32_t> ids_, counts_;
};

/// Scores of some nats, values of size 1 to 5: 2e-5 and the rounding of T, as for dense attention.
template <class T>
void check_unit(const test::dense_result<T>& result, std::int64_t unit, const rows_reference& expected) {
  const auto rows = static_cast<std::ptrdiff_t>(expected.lse.size()), size = static_cast<std::ptrdiff_t>(expected.out.size());
  test::dense_result<T> part;
  part.out.assign(result.out.begin() + unit * size, result.out.begin() + (unit + 1) * size);
  part.lse.assign(result.lse.begin() + unit * rows, result.lse.begin() + (unit + 1) * rows);
  test::check_close(part, {expected.out, expected.lse});
}

/// The same set for every head of one token.
template <class E, class T>
void check(const paged_shape& s, int group, const chosen_set& set, const row_options& o = {}) {
  const paged_rows<E> rows(s);
  const query_rows<T> q(1, s.heads * group, s.key_dim, 5);
  const std::vector<batch_item> items = {rows.item(0, 1, 0)};
  partial<E, T> p(rows, items, q);
  p.take(std::vector<chosen_set>(static_cast<std::size_t>(s.heads), set), o);
  const auto result = p.finished();
  for (int head = 0; head < s.heads; ++head) {
    const tensor_view<const T, 2> queries(q.data.data() + head * group * s.key_dim, group, s.key_dim);
    check_unit(result, head, test::attend_chosen(rows.view(), items[0].pages, head, queries, {set.ranges, set.ids}, o));
  }
}

}  // namespace

TEST_CASE("head dims, elements, K and V of different width") {
  const chosen_set set{{{0, 4}, {90, 100}}, some_of(100, .3, 1)};
  for (const int d : {1, 2, 7, 8, 17, 31, 46, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256, 575, 576}) {
    CAPTURE(d);
    check<bf16, float>({.key_dim = d, .value_dim = d, .lengths = {100}, .gap = d % 3}, 4, set);
    check<kvx::half, kvx::half>({.key_dim = d, .value_dim = 577 - d, .lengths = {100}, .offset = 1, .gap = 1}, 3, set);
  }
  for (const int d : {1, 46, 128, 576}) check<float, float>({.key_dim = d, .value_dim = d, .lengths = {100}, .gap = d % 3}, 2, set);
  check<kvx::half, float>({.key_dim = 80, .value_dim = 112, .lengths = {100}}, 4, set);
  check<float, bf16>({.key_dim = 192, .value_dim = 128, .lengths = {100}}, 2, set);
  check<bf16, kvx::half>({.key_dim = 96, .value_dim = 96, .lengths = {100}}, 2, set);
  check<bf16, bf16>({.key_dim = 576, .value_dim = 512, .lengths = {100}}, 16, set);
}

TEST_CASE("groups 1 to 16 and 64, several heads, every page size") {
  const chosen_set set{{{0, 4}, {140, 150}}, some_of(150, .5, 2)};
  for (int group = 1; group <= 17; ++group) {
    CAPTURE(group);
    check<bf16, float>({.heads = 2, .page_tokens = 1 << group % 8, .key_dim = 24, .value_dim = 20, .lengths = {150}},
                       group == 17 ? 64 : group, set);
  }
}

TEST_CASE("sets: nothing, one range, ids alone, every size around a tile and a piece") {
  const paged_shape s{.page_tokens = 64, .key_dim = 16, .value_dim = 12, .lengths = {2500}};
  check<float, float>(s, 2, {});
  check<bf16, float>(s, 2, {{{5, 5}, {9, 3}}, {}});
  check<bf16, float>(s, 2, {{{7, 8}}, {}});
  std::vector<std::int32_t> all(2500);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  for (const std::ptrdiff_t n :
       {1, 2, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 97, 127, 128, 129, 511, 512, 513, 2047, 2048, 2049, 2200}) {
    CAPTURE(n);
    check<kvx::half, float>(s, 2, {{}, {all.begin() + 13, all.begin() + 13 + n}});
    check<bf16, float>(s, 2, {{{3, 3 + n}}, {all.begin() + 1650, all.begin() + 1657}});
  }
}

TEST_CASE("scale and soft cap; queries beyond the range of half") {
  const chosen_set set{{}, some_of(300, .5, 3)};
  check<float, float>({.key_dim = 40, .value_dim = 40, .lengths = {300}}, 4, set, {.scale = .7f});
  check<bf16, float>({.key_dim = 40, .value_dim = 40, .lengths = {300}}, 4, set, {.scale = .7f, .soft_cap = 3});
  check<bf16, bf16>({.key_dim = 40, .value_dim = 40, .lengths = {300}}, 4, set, {.scale = -.3f});

  const paged_rows<kvx::half> rows({.key_dim = 24, .value_dim = 16, .lengths = {300}});
  query_rows<float> q(1, 3, 24, 5);
  for (std::size_t d = 0; d < 24; ++d) q.data[d] *= 1e9f, q.data[24 + d] *= 1e-9f;
  for (std::size_t d = 48; d < 72; ++d) q.data[d] = 0;
  const row_options o{.scale = 2e-10f};
  partial<kvx::half, float> p(rows, {rows.item(0, 1, 0)}, q);
  p.take({set}, o);
  check_unit(p.finished(), 0,
             test::attend_chosen(rows.view(), rows.item(0, 1, 0).pages, 0, tensor_view<const float, 2>(q.data.data(), 3, 24),
                                 {set.ranges, set.ids}, o));
}

TEST_CASE("rows that are not chosen may hold anything") {
  paged_rows<bf16> rows({.page_tokens = 16, .key_dim = 32, .value_dim = 32, .lengths = {200}});
  const query_rows<float> q(1, 4, 32, 5);
  const chosen_set set{{}, some_of(200, .4, 4)};
  partial<bf16, float> before(rows, {rows.item(0, 1, 0)}, q);
  before.take({set});
  for (std::int32_t t = 0; t < 200; ++t) {
    if (std::binary_search(set.ids.begin(), set.ids.end(), t)) continue;
    std::fill_n(rows.key(0, t, 0), 32, round_to<bf16>(quiet_nan));
    std::fill_n(rows.value(0, t, 0), 32, round_to<bf16>(infinity));
  }
  partial<bf16, float> after(rows, {rows.item(0, 1, 0)}, q);
  after.take({set});
  CHECK(before.sums() == after.sums());
  CHECK(before.states() == after.states());
}

TEST_CASE("residents first, then the selection: one softmax over both, and over any split") {
  const paged_shape s{.heads = 2, .page_tokens = 16, .key_dim = 32, .value_dim = 24, .lengths = {900}};
  const paged_rows<bf16> rows(s);
  const std::vector<batch_item> items = {rows.item(0, 1, 0)};
  const query_rows<float> q(1, 6, 32, 5);
  const std::vector<token_range> ranges = {{0, 4}, {700, 900}};
  std::vector<std::int32_t> ids = some_of(696, .3, 5);
  for (std::int32_t& t : ids) t += 4;
  const auto sets = [](const chosen_set& set) { return std::vector<chosen_set>(2, set); };
  const auto check_all = [&](const test::dense_result<float>& result) {
    for (std::int64_t head = 0; head < 2; ++head) {
      check_unit(result, head,
                 test::attend_chosen(rows.view(), items[0].pages, head, tensor_view<const float, 2>(q.data.data() + head * 3 * 32, 3, 32),
                                     {ranges, ids}, {}));
    }
  };
  for (std::size_t cut = 0; cut <= ids.size(); cut += 50) {
    CAPTURE(cut);
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(cut);
    partial<bf16, float> p(rows, items, q);
    p.take(sets({ranges, {}}));
    p.take(sets({{}, {ids.begin(), at}}));
    const auto states = p.states();
    const auto sums = p.sums();
    const auto chosen = p.choose(sets({{}, {at, ids.end()}}));
    check_all(chosen);
    CHECK(p.states() == states);  // residents stay
    CHECK(p.sums() == sums);
    p.take(sets({{}, {at, ids.end()}}));
    check_all(p.finished());
  }
}

TEST_CASE("ragged units: each its own set, positions of several queries, a unit that takes no part") {
  const paged_rows<kvx::half> rows({.heads = 2, .page_tokens = 32, .key_dim = 48, .value_dim = 40, .lengths = {400, 90, 30}});
  const std::vector<batch_item> items = {rows.item(0, 2, 0), rows.item(1, 1, 2), rows.item(2, 0, 3), rows.item(2, 1, 3)};
  const query_rows<kvx::half> q(4, 10, 48, 6);
  std::vector<chosen_set> sets(8);
  for (std::size_t u = 0; u < 8; ++u)
    sets[u].ids = some_of(u < 4 ? 399 : u < 6 ? 90 : 30, .2 * static_cast<double>(u % 4), static_cast<unsigned>(u));
  partial<kvx::half, kvx::half> p(rows, items, q);
  const auto result = p.choose(sets, {}, false);
  const std::size_t entry_of[] = {0, 0, 1, 3};
  for (std::size_t u = 0; u < 8; ++u) {
    const tensor_view<const kvx::half, 2> queries(q.data.data() + u * 5 * 48, 5, 48);
    check_unit(
        result, static_cast<std::int64_t>(u),
        test::attend_chosen(rows.view(), items[entry_of[u / 2]].pages, static_cast<std::int64_t>(u % 2), queries, {{}, sets[u].ids}, {}));
  }
}

TEST_CASE("planned maxima do not change a bit, nor does another run") {
  const paged_rows<bf16> rows({.page_tokens = 64, .key_dim = 64, .value_dim = 64, .lengths = {5000}});
  const query_rows<float> q(1, 4, 64, 5);
  const chosen_set set{{{0, 3}}, some_of(5000, .1, 6)};
  partial<bf16, float> one(rows, {rows.item(0, 1, 0)}, q);
  one.take({set});
  for (const std::int64_t more : {0, 1, 1000, 100000}) {
    partial<bf16, float> other(rows, {rows.item(0, 1, 0)}, q);
    other.take({set}, {}, more);
    CHECK(other.sums() == one.sums());
    CHECK(other.states() == one.states());
  }
}

TEST_CASE_TEMPLATE("a NaN among the chosen keys shows, a -inf score is no row", E, float, bf16, kvx::half) {
  paged_rows<E> rows({.page_tokens = 16, .key_dim = 8, .value_dim = 8, .lengths = {40}});
  const query_rows<float> q(1, 1, 8, 5);
  const std::vector<batch_item> items = {rows.item(0, 1, 0)};
  partial<E, float> two(rows, items, q);
  two.take({{{}, {2, 3}}});
  for (int d = 0; d < 8; ++d) rows.key(0, 1, 0)[d] = round_to<E>(q.data[static_cast<std::size_t>(d)] > 0 ? -infinity : infinity);
  partial<E, float> masked(rows, items, q);
  masked.take({{{}, {1, 2, 3}}});
  const auto two_finished = two.finished(), masked_finished = masked.finished();
  for (std::size_t d = 0; d < 8; ++d) CHECK(masked_finished.out[d] == doctest::Approx(two_finished.out[d]).epsilon(1e-5));
  CHECK(masked_finished.lse[0] == doctest::Approx(two_finished.lse[0]));
  partial<E, float> none(rows, items, q);
  none.take({{{}, {1}}});
  CHECK(none.finished().out == std::vector<float>(8));
  CHECK(none.finished().lse[0] == -infinity);
  rows.key(0, 1, 0)[3] = round_to<E>(quiet_nan);
  partial<E, float> spoiled(rows, items, q);
  spoiled.take({{{}, {1, 2, 3}}});
  CHECK(is_nan(spoiled.states()[0].lse()));
  CHECK(is_nan(spoiled.finished().out[0]));
}

TEST_CASE("misuse is refused") {
  const paged_rows<float> rows({.key_dim = 8, .value_dim = 8, .lengths = {40}});
  const rows_on_device<float> there(rows);
  const batch_on_device batch(there.tables(), {rows.item(0, 1, 0)});
  device_array<float> q(16), sums(16);
  device_array<softmax_state> states(2);
  const auto needed = static_cast<std::size_t>(attend_rows_scratch(device{}, there.view(), 1, 2, 40));
  device_array<std::byte> scratch(needed);
  device_array<unsigned> tickets(std::vector<unsigned>(1));
  const auto call = [&](std::int64_t dim, std::int64_t heads, std::size_t bytes, std::size_t count) {
    attend_rows<float, float>(device{}, there.view(), batch.view(), tensor_view<const float, 3>(q.data(), 1, heads, dim), {nullptr, {}, 40},
                              {}, states.data(), sums.data(), {scratch.data(), bytes}, {tickets.data(), count});
  };
  CHECK_NOTHROW(call(8, 2, needed, 1));
  CHECK_THROWS_AS(call(7, 2, needed, 1), usage_error);
  CHECK_THROWS_AS(call(8, 2, needed - 1, 1), usage_error);
  CHECK_THROWS_AS(call(8, 2, needed, 0), usage_error);
}
