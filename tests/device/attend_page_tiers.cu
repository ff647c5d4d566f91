// Attention in tiers over semantic pages on the device is what its definition says, and the columns of values are the host's, byte for
 // byte.

#include "batch_on_device.cuh"
#include "device_array.cuh"

#include <support/page_tiers_case.hpp>

#include <kvx/attend/cuda/pages.cuh>
#include <kvx/index/cuda/page_values.cuh>
#include <kvx/sketch/cuda/key_code.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using namespace kvx;
using namespace kvx::test;

namespace {

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();

/// Options with every V read, so that the definition can be met.
page_options with(std::int64_t keep, int pages = 0, bool coded = true, bool tail = true) {
  return {.keep = keep, .pages = {.pages = pages}, .others = {coded, tail, 0}};
}

/// A case on the device, its columns filled there.
template <page_shape Page, int Bits>
class on_device {
 public:
  using case_type = page_tiers_case<Bits>;

  on_device(const case_type& c, const paged_shape& s, int group)
      : case_(c), group_(group), rows_(c.rows), batch_(rows_.tables(), c.items()) {
    for (std::size_t i = 0; i < side_.size(); ++i) {
      side_[i] = c.columns()[i];
      memory_[i] = device_array<std::byte>(static_cast<std::size_t>(side_[i].data != nullptr ? side_[i].heads * side_[i].head_stride : 0));
      if (side_[i].data != nullptr) side_[i].data = memory_[i].data();
    }
    std::vector<block_to_index> blocks;
    std::vector<page_to_encode> pages;
    for (std::size_t i = 0; i < s.lengths.size(); ++i) {
      const std::int64_t count = c.zone(i).end / case_type::shape.block, per = case_type::shape.block / Page.tokens;
      for (std::int64_t b = 0; b < count; ++b) blocks.push_back({rows_.tables().device[i], 0, b});
      for (std::int64_t j = 0; j < count * per; ++j) pages.push_back({c.items()[i].pages[j], c.items()[i].pages[j], nullptr});
    }
    const device_array<block_to_index> listed(blocks);
    const device_array<page_to_encode> coded(pages);
    const device exec{.stream = stream_.get()};
    index_blocks<float>(exec, case_type::shape, rows_.view(), side_[column_members], side_[column_member_means], {}, {},
                        case_type::cut.sink, true, listed.data(), std::ssize(blocks));
    encode_pages<4, float>(exec, case_type::sketch, rows_.view(), codes_of(side_), coded.data(), std::ssize(pages));
    encode_page_values<Bits, float>(exec, case_type::shape, case_type::sketch, rows_.view(), side_[column_members], codes_of(side_),
                                    page_values_of(side_), case_type::cut.sink, listed.data(), std::ssize(blocks));
    stream_.wait();
  }

  /// Columns on both sides, poison where nothing is written included.
  void check_columns() const {
    for (std::size_t i = 0; i < side_.size(); ++i) {
      const std::vector<std::byte> there = memory_[i].read();
      CAPTURE(i);
      CHECK((there.empty() || std::memcmp(there.data(), case_.columns()[i].data, there.size()) == 0));
    }
  }

  template <class Reranker = typename case_type::tiered>
  retrieved attend(const page_options& o, std::int64_t whole_below = 0, Reranker policy = {}) const {
    const std::int64_t N = case_.tokens(), Q = case_.heads();
    device_page_layer<float> layer{
        rows_.view(),  side_[column_members], side_[column_member_means], {}, codes_of(side_), case_type::sketch, case_type::cut,
        batch_.view(), batch_.view(),         page_values_of(side_)};
    const auto shape = page_search_of(case_type::shape, {}, false, Page, case_type::cut, static_cast<int>(Q / group_), Q, N,
                                      batch_.view().longest, o, true, tiers_used(tiers_of<Reranker>(), o.others), whole_below);
    const device exec{.stream = stream_.get()};
    const attend_memory needed = attend_pages_scratch(exec, layer.rows, shape, true);
    const device_array<std::byte> scratch(static_cast<std::size_t>(needed.bytes));
    const device_array<unsigned> counters(std::vector<unsigned>(static_cast<std::size_t>(needed.counters)));
    const device_array<float> q(case_.q), out(static_cast<std::size_t>(N * Q * Page.value_dim)), lse(static_cast<std::size_t>(N * Q));
    retrieved r;
    for (int run = 0; run < (o.keep == 10 ? 2 : 1); ++run) {  // the second finds what the first has left
      attend_pages<Page, false, float, float>(
          exec, layer, policy, shape, tensor_view<const float, 3>(static_cast<const float*>(q.data()), N, Q, Page.key_dim),
          tensor_view<float, 3>(out.data(), N, Q, Page.value_dim), tensor_view<float, 2>(lse.data(), N, Q),
          {scratch.data(), scratch.size()}, {counters.data(), counters.size()});
      stream_.wait();
      for (const unsigned n : counters.read()) CHECK(n == 0);
      const retrieved now{out.read(), lse.read()};
      if (run > 0) CHECK(now == r);
      r = now;
    }
    return r;
  }

 private:
  const case_type& case_;
  int group_;
  test::rows_on_device<float> rows_;
  batch_on_device batch_;
  block_column_arrays side_;
  std::array<device_array<std::byte>, block_column_count> memory_;
  test_stream stream_;
};

constexpr page_shape small{8, 24, 20};

paged_shape rows_of(std::vector<std::int64_t> lengths) {
  return {.heads = 2, .page_tokens = small.tokens, .key_dim = small.key_dim, .value_dim = small.value_dim, .lengths = std::move(lengths)};
}

}  // namespace

TEST_CASE("exact, coded, the means of the other pages, in one softmax: the definition's; columns of values: the host's") {
  const paged_shape s = rows_of({140, 60, 20});
  const page_tiers_case<4> c(s, 3);
  const on_device<small, 4> d(c, s, 3);
  d.check_columns();
  page_options capped = with(10, 6);
  capped.scale = .3f;
  capped.soft_cap = 2;
  for (const page_options& o : {with(10), with(0), with(5, 9), with(0, 0, false), with(10, 5, true, false), capped}) {
    CAPTURE(o.keep);
    CAPTURE(o.others.coded);
    CAPTURE(o.others.tail);
    CHECK(distance(d.attend(o), c.in_tiers(o)) <= 1);
  }
  CHECK(distance(d.attend(with(10), 400), c.dense()) <= 1);  // all are short
}

TEST_CASE("values and keys that cannot be averaged are in no page; a key whose code cannot be read stays in the mean of its page") {
  const paged_shape s = rows_of({200, 160});
  page_tiers_case<4> c(s, 2);
  c.rows.value(0, 70, 0)[3] = 0x1p58f;
  c.rows.value(1, 20, 1)[0] = quiet_nan;
  c.rows.key(0, 60, 1)[7] = quiet_nan;
  for (std::int64_t t = 96; t < 119; ++t) c.rows.value(0, t, 0)[1] = quiet_nan;  // 9 of a block are left, then one
  for (std::int64_t t = 128; t < 159; ++t) c.rows.value(0, t, 0)[1] = infinity;
  c.rows.key(1, 100, 0)[3] = 0x1p80f;  // its page's codes are relative to a mean that is no one's
  c.index();
  const on_device<small, 4> d(c, s, 2);
  d.check_columns();
  for (const page_options& o : {with(9), with(6, 1000), with(10, 10, false)}) CHECK(distance(d.attend(o), c.in_tiers(o)) <= 1);
  CHECK(d.attend(with(400, 1000)) == d.attend(with(400), 0, rsq_ip<4>{}));  // all rows, that one's too
}

TEST_CASE("no coded rows and no tail: the best members alone, bit for bit; pages that are all taken add nothing; two bits, means alone") {
  const paged_shape s = rows_of({190, 40});
  const page_tiers_case<2> c(s, 3);
  const on_device<small, 2> d(c, s, 3);
  d.check_columns();
  for (const std::int64_t keep : {0, 30}) CHECK(d.attend(with(keep, 0, false, false)) == d.attend(with(keep), 0, rsq_ip<4>{}));
  CHECK(d.attend(with(64, 8, true, false)) == d.attend(with(64, 8), 0, rsq_ip<4>{}));
  CHECK(d.attend(with(everything)) == d.attend(with(everything), 0, rsq_ip<4>{}));
  CHECK(distance(d.attend(with(10, 6)), c.in_tiers(with(10, 6))) <= 1);
  page_options skipping = with(10, 6);
  skipping.others.skip = .5f;
  CHECK(d.attend(skipping) != d.attend(with(10, 6)));
  const page_tiers_case<0> m(s, 3);
  const on_device<small, 0> e(m, s, 3);
  e.check_columns();
  CHECK(distance(e.attend(with(10, 6)), m.in_tiers(with(10, 6))) <= 1);
}
