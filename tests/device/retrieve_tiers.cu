// Attention in tiers on the device is what its definition says, and attention with rows alone where the tiers are left out.

#include <kvx/attend/cuda/retrieve.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "device/batch_on_device.cuh"
#include "device/device_array.cuh"
#include "support/tiered_case.hpp"

using namespace kvx;
using namespace kvx::test;

namespace {

using tiered_shape = kvx::test::retrieve_shape;

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

/// A tiered case whose dims the compiler knows, and what the device makes of it.
template <int ValueBits, int P, int D, int Dv>
class case_on_device : public tiered_case<ValueBits> {
  using base = tiered_case<ValueBits>;

 public:
  using base::q, base::rows;

  explicit case_on_device(tiered_shape s) : base(with_dims(s)) {}

  template <class Reranker = rsq_ip<4, tiers{.value_bits = ValueBits, .tail = true}>>
  retrieved on_device(const retrieve_options& o, std::int64_t whole_below = 0) const {
    const test::rows_on_device<float> there(rows);
    std::vector<batch_item> items;
    for (std::size_t i = 0; i < this->items_.size(); ++i) items.push_back(this->items_[i]);
    const batch_on_device batch(there.tables(), items);
    const std::int64_t N = this->tokens(), Q = this->heads();
    std::vector<device_array<std::byte>> bytes;
    const auto upload = [&](auto columns) {
      for (column_array& c : columns) {
        if (c.data == nullptr) continue;
        bytes.emplace_back(std::span<const std::byte>(c.data, static_cast<std::size_t>(c.head_stride * c.heads)));
        c.data = bytes.back().data();
      }
      return columns;
    };
    device_retrieve_layer<float> layer{there.view(),     upload(this->columns_), this->shape_.sketch,
                                       this->shape_.cut, batch.view(),           batch.view()};
    layer.values = upload(this->values_);
    const Reranker policy{this->shape_.rule};
    const attend_memory needed = attend_retrieved_scratch<Reranker>(device{}, this->shape_.sketch, this->shape_.by, this->shape_.cut,
                                                                    this->page(), there.view(), Q, N, batch.view().longest, o, whole_below);
    const device_array<std::byte> scratch(static_cast<std::size_t>(needed.bytes));  // full of NaN
    const device_array<unsigned> counters(std::vector<unsigned>(static_cast<std::size_t>(needed.counters)));
    const device_array<float> queries(q), out(static_cast<std::size_t>(N * Q * Dv)), lse(static_cast<std::size_t>(N * Q));
    attend_retrieved<page_shape{P, D, Dv}, float, float>(
        device{}, layer, this->shape_.by, policy, tensor_view<const float, 3>(queries.data(), N, Q, D),
        tensor_view<float, 3>(out.data(), N, Q, Dv), tensor_view<float, 2>(lse.data(), N, Q), o, whole_below,
        {scratch.data(), scratch.size()}, {counters.data(), counters.size()});
    const retrieved r{out.read(), lse.read()};
    for (const unsigned n : counters.read()) CHECK(n == 0);
    return r;
  }

 private:
  static tiered_shape with_dims(tiered_shape s) {
    s.rows.page_tokens = P;
    s.rows.key_dim = D;
    s.rows.value_dim = Dv;
    return s;
  }
};

tiered_shape shape_of(int group, std::vector<std::int64_t> lengths) {
  return {.rows = {.heads = 2, .lengths = std::move(lengths)}, .group = group};
}

/// Options with every V read, so that the definition can be met.
retrieve_options with(std::int64_t keep, double fraction, bool coded = true, bool tail = true) {
  return {.keep = keep, .breadth = {.fraction = fraction, .per_kept = 0}, .others = {coded, tail, 0}};
}

template <class Case>
void check_definition(const Case& c, const retrieve_options& o) {
  CAPTURE(o.keep);
  CAPTURE(o.others.coded);
  CAPTURE(o.others.tail);
  CHECK(distance(c.on_device(o), c.in_tiers(o)) <= 1);
}

}  // namespace

TEST_CASE("what is attended to is the definition's: exact, coded, tail, in one softmax") {
  const case_on_device<4, 32, 20, 46> c(shape_of(3, {400, 40, 333}));
  for (const retrieve_options& o : {with(20, .1), with(0, .1), with(5, .5), with(0, .9), with(20, .1, true, false), with(20, .1, false)})
    check_definition(c, o);
  check_definition(case_on_device<4, 16, 64, 64>(shape_of(1, {300})), with(6, .1));
  check_definition(case_on_device<4, 64, 8, 136>(shape_of(5, {500, 3})), with(6, .1));
  check_definition(case_on_device<4, 1, 8, 8>(shape_of(2, {150})), with(6, .1));
}

TEST_CASE("two bits a value, means alone; soft caps, scales, other rules; several new tokens; searches that leave no page dots") {
  tiered_shape s = shape_of(2, {500, 100});
  s.queries = 3;
  retrieve_options o = with(10, .15);
  check_definition(case_on_device<2, 16, 40, 21>(s), o);
  check_definition(case_on_device<0, 16, 40, 21>(s), o);
  o.scale = .3f;
  o.soft_cap = 2;
  o.others.skip = .125f;  // every value is read none the less
  check_definition(case_on_device<2, 16, 40, 21>(s), o);
  s.by.of = bucket_scoring::query::mean_query;
  s.rule.by = group_rule::kind::mean;
  check_definition(case_on_device<2, 16, 40, 21>(s), o);
}

TEST_CASE("a budget of the layer: rows of its heads together, with tiers and without; one head: its own budget") {
  tiered_shape s = shape_of(3, {300, 40, 333});
  s.rows.heads = 3;
  s.queries = 2;
  case_on_device<4, 32, 20, 24> c(s);
  for (std::size_t i = 0; i < c.q.size(); ++i) c.q[i] *= static_cast<float>(1 + i / (3 * 20) % 3);  // heads that are more and less sure
  for (retrieve_options o : {with(9, .3), with(0, .1), with(12, .3, false, false)}) {
    const retrieved own = c.on_device(o);
    o.budget.of = retrieve_budget::kind::layer;
    check_definition(c, o);
    CHECK((c.on_device(o) == own) == (o.keep == 0));
    if (!o.others.any()) CHECK(c.template on_device<rsq_ip<4>>(o) == c.on_device(o));
  }
  retrieve_options all = with(everything, .1);
  all.budget.of = retrieve_budget::kind::layer;
  CHECK(distance(c.on_device(all), c.dense({})) <= 1);
  retrieve_options short_ones = with(2, .1);
  short_ones.budget.of = retrieve_budget::kind::layer;
  CHECK(distance(c.on_device(short_ones, 1000), c.dense({})) <= 1);
  s.rows.heads = 1;
  const case_on_device<4, 32, 20, 24> single(s);
  retrieve_options o = with(7, .2);
  const retrieved own = single.on_device(o);
  o.budget.of = retrieve_budget::kind::layer;
  CHECK(single.on_device(o) == own);
  o.budget.of = retrieve_budget::kind::mass;
  CHECK_THROWS_AS(single.on_device(o), usage_error);
}

TEST_CASE("more pieces of a zone than one, more heads than a block takes") {
  const case_on_device<2, 8, 8, 8> c(shape_of(9, {1200}));
  check_definition(c, with(10, .02));
  CHECK(c.on_device(with(10, .02)) == c.on_device(with(10, .02)));
}

TEST_CASE("keep covers the zone: dense attention; what is all taken adds nothing, bit for bit; whole short sequences") {
  const case_on_device<4, 16, 16, 24> c(shape_of(2, {1, 36, 64, 300}));
  CHECK(distance(c.on_device(with(everything, .1)), c.dense({})) <= 1);
  CHECK(c.on_device(with(300, 1)) == c.template on_device<rsq_ip<4>>(with(300, 1)));
  CHECK(distance(c.on_device(with(10, .1), 1000), c.dense({})) <= 1);
}

TEST_CASE("no coded rows and no tail: ParisKV, bit for bit; a sound skip moves little") {
  case_on_device<4, 32, 32, 32> c(shape_of(4, {700}));
  for (float& x : c.q) x *= 3;
  for (const std::int64_t keep : {0, 30}) {
    CHECK(c.on_device(with(keep, .1, false, false)) == c.template on_device<rsq_ip<4>>(with(keep, .1)));
  }
  retrieve_options o = with(5, .3);
  const retrieved all = c.on_device(o);
  const auto moved = [&](float skip) {
    o.others.skip = skip;
    const retrieved got = c.on_device(o);
    CHECK(got.lse == all.lse);
    float most = 0;
    for (std::size_t i = 0; i < all.out.size(); ++i) most = std::max(most, std::abs(got.out[i] - all.out[i]));
    return most;
  };
  CHECK(moved(.125f) > 0);
  CHECK(moved(.125f) < .125f * 5);  // components of normal values are within 5 of their mean
  CHECK(moved(1) < 5);
  CHECK(moved(.125f) < moved(1));
}

TEST_CASE("nothing exact: no row of the zone is read") {
  case_on_device<4, 64, 24, 24> c(shape_of(2, {400}));
  const retrieved before = c.on_device(with(0, .1));
  for (std::int64_t t = 4; t < c.end_of_zone(0); ++t) {
    for (int h = 0; h < 2; ++h) {
      std::fill_n(c.rows.key(0, t, h), 24, quiet_nan);
      std::fill_n(c.rows.value(0, t, h), 24, quiet_nan);
    }
  }
  CHECK(c.on_device(with(0, .1)) == before);
}

TEST_CASE("values and keys that are not finite count nothing where rows are not read, and their pages have no tail") {
  for (const float bad : {quiet_nan, infinity}) {
    case_on_device<4, 64, 24, 40> c(shape_of(3, {400, 200}));
    c.rows.value(0, 70, 0)[3] = bad;
    c.rows.value(1, 20, 1)[0] = bad;
    c.rows.key(0, 200, 1)[7] = bad;
    c.encode();
    for (const retrieve_options& o : {with(10, .1), with(0, .1), with(400, 1), with(10, .1, false)}) check_definition(c, o);
  }
}

TEST_CASE("constant values: the output is the constant") {
  case_on_device<2, 32, 16, 13> c(shape_of(2, {500}));
  for (std::int64_t t = 0; t < 500; ++t) {
    for (int h = 0; h < 2; ++h) std::fill_n(c.rows.value(0, t, h), 13, 2.5f);
  }
  c.encode();
  for (const float x : c.on_device(with(10, .1)).out) CHECK(std::abs(x - 2.5f) < 1e-5f);
}
