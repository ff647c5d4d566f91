// Long coded frames keep the mean of their own text: what it is, what it is good for, and what of it a reader does not take.

#include "coded_caches.hpp"
#include "stored.hpp"

#include <support/feed.hpp>

#include <kvx/codec/frame.hpp>
#include <kvx/kvtc.hpp>
#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/transform/rope.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::coded_caches;

constexpr std::int64_t N = 300, sinks = 4, newest = 32, never = std::numeric_limits<std::int64_t>::max();
using payloads = std::vector<std::pair<frame_section, std::vector<std::byte>>>;

/// How far the rows of a text lie beside noise around 0, before keys are turned.
float offset(row_part which, int layer, std::int64_t f) {
  return .5f * std::cos(static_cast<float>(7 * layer + 3 * f + (which == row_part::key ? 1 : 2)));
}

/// A sequence of N tokens: noise, and the offsets of its text.
template <class Cache>
sequence written(Cache& c, const host& exec, const std::function<void(int, std::vector<float>&, std::vector<float>&)>& change = {}) {
  const sequence s = c.open(exec);
  step step = c.begin(exec, {{s, N}});
  const auto known = model(3);
  std::vector<std::int64_t> positions(N);
  std::iota(positions.begin(), positions.end(), 0);
  for (int layer = 0; layer < L; ++layer) {
    auto k = rows_of<float>(tokens(1, N), part::key, layer, H, D), v = rows_of<float>(tokens(1, N), part::value, layer, H, Dv);
    const rope_turns turns(known->of().turns[known->of().turn_of_layer[static_cast<std::size_t>(layer)]], positions);
    for (std::int64_t t = 0; t < N; ++t) {
      for (std::int64_t h = 0; h < H; ++h) {
        float key[D];
        for (std::int64_t d = 0; d < D; ++d) key[d] = offset(row_part::key, layer, h * D + d);
        turn_key(key, turns.pairs(), turns.of(t), turns.magnitude(), true);
        for (std::int64_t d = 0; d < D; ++d) k[static_cast<std::size_t>((t * H + h) * D + d)] += key[d];
        for (std::int64_t d = 0; d < Dv; ++d)
          v[static_cast<std::size_t>((t * H + h) * Dv + d)] += offset(row_part::value, layer, h * Dv + d);
      }
    }
    if (change) change(layer, k, v);
    c.append(exec, step, layer, k.data(), v.data());
  }
  c.commit(exec, step);
  return s;
}

std::vector<std::int32_t> some_ids() {
  std::vector<std::int32_t> ids(N);
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

std::vector<std::byte> bytes_in(const memory_store& store) {
  std::vector<std::byte> bytes;
  REQUIRE(read_all(store, digest{}, 1 << 24, bytes).ok());
  return bytes;
}
payloads sections_in(const memory_store& store, section_kind kind) {
  const std::vector<std::byte> frame = bytes_in(store);
  frame_view view;
  REQUIRE(check_frame(frame, view).ok());
  payloads all;
  for (const frame_section& s : view.sections) {
    const auto* const first = frame.data() + s.offset;
    if (s.kind == kind) all.push_back({s, {first, first + s.bytes}});
  }
  return all;
}
std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<kvx::half> halves(bytes.size() / sizeof(kvx::half));
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  std::vector<float> floats(halves.size());
  std::transform(halves.begin(), halves.end(), floats.begin(), [](kvx::half x) { return to_float(x); });
  return floats;
}

/// The mean over the coded tokens of layers 0 and 2 of what calibration and predictor leave, token by token.
template <class Cache>
std::vector<double> plain_mean(const Cache& c, sequence s, const calibrated_model& m, row_part which,
                               const std::vector<std::int32_t>& ids) {
  const span_basis& b = m.basis(0, which);
  const token_predictor& p = m.predictor(which);
  const std::int64_t dim = which == row_part::key ? D : Dv;
  std::vector<double> mean(static_cast<std::size_t>(2 * H * dim));
  for (std::int64_t t = sinks; t < N - newest; ++t) {
    float e[12] = {}, z[12] = {};
    embed(&one, std::span(ids).subspan(static_cast<std::size_t>(t), 1), e);
    embed(&one, std::span(ids).subspan(static_cast<std::size_t>(t - 1), 1), e + 6);
    normed_embedding(e, 6, z);
    normed_embedding(e + 6, 6, z + 6);
    for (std::int64_t f = 0; f < 2 * H * dim; ++f) {
      const int layer = f < H * dim ? 0 : 2;
      std::vector<float> x = row(c, s, which, layer, t, static_cast<int>(f / dim % H));
      const rope& turn = m.of().turns[m.of().turn_of_layer[static_cast<std::size_t>(layer)]];
      const std::int64_t position[] = {t};
      const rope_turns turns(turn, position);
      if (which == row_part::key) turn_key(x.data(), turns.pairs(), turns.of(0), turns.magnitude(), false);
      double left = static_cast<double>(x[static_cast<std::size_t>(f % dim)]) - static_cast<double>(b.mean[static_cast<std::size_t>(f)]);
      for (std::int64_t r = 0; r < p.rank; ++r) {
        double input = 0;
        for (int i = 0; i < 12; ++i)
          input += static_cast<double>(z[i]) * static_cast<double>(to_float(p.inputs[static_cast<std::size_t>(i * p.rank + r)]));
        left -= input * static_cast<double>(to_float(b.outputs[static_cast<std::size_t>(r * b.features() + f)]));
      }
      mean[static_cast<std::size_t>(f)] += left / static_cast<double>(N - sinks - newest);
    }
  }
  return mean;
}

}  // namespace

TEST_CASE("a frame of many tokens keeps the mean of what calibration and ids leave of its own; one of fewer is what it was") {
  const host exec = one_thread();
  const auto m = model(3);
  ours a(exec, spec_of<ours>(m), coded_shape);
  const sequence s = written(a, exec);
  const std::vector<std::int32_t> ids = some_ids();
  memory_store store, without;
  const auto save = [&](memory_store& to, std::int64_t from, double ratio = 0) {
    save_well(a, exec, s, to, {.token_ids = ids, .chunk = 50, .fixed_ratio = ratio, .own_mean_from = from});
  };
  save(store, N - sinks - newest);
  const payloads means = sections_in(store, section_kind::mean);
  REQUIRE(means.size() == 2);  // layers 0 and 2; of layer 1 few tokens are left, layer 3 is not coded
  for (std::size_t i = 0; i < 2; ++i) {
    const auto expected = plain_mean(a, s, *m, static_cast<row_part>(i), ids);
    const std::vector<float> found = floats_of(means[i].second);
    CHECK(means[i].first.part == i + 1);
    REQUIRE(found.size() == expected.size());
    for (std::size_t f = 0; f < found.size(); ++f)
      CHECK(std::abs(static_cast<double>(found[f]) - expected[f]) < 1e-3);  // halves of up to .8
  }
  save(without, never);
  save(store, N - sinks - newest + 1);
  CHECK(bytes_in(store) == bytes_in(without));
  save(store, 1, 4);  // pages are decoded alone
  CHECK(sections_in(store, section_kind::mean).empty());
  save(store, 1);
  CHECK(sections_in(store, section_kind::mean).size() == 6);
  CHECK_THROWS_AS((void)a.save(exec, s, store, digest{}, {.token_ids = ids, .own_mean_from = 0}), usage_error);
}

TEST_CASE("where coding leaves a text's own mean out, restored rows are nearer with it: whole, cut, turn by turn, layer by layer") {
  const host exec = one_thread();
  constexpr std::int16_t coarse = 768;  // steps of 8: nothing of these rows is coded
  geometry dense = coded_shape;
  dense.kinds.assign(L, layer_kind::dense());
  ours a(exec, spec_of<ours>(model(), coarse), dense), b(exec, spec_of<ours>(model(), coarse), dense);
  const sequence s = written(a, exec);
  memory_store store, turn;
  double errors[2] = {};
  for (const bool with : {false, true}) {
    save_well(a, exec, s, store, {.chunk = 50, .own_mean_from = with ? 100 : never});
    const sequence t = restored_well(b, exec, store);
    errors[with] = error_of(a, s, b, t, sinks, N - newest);
    b.close(exec, t);
  }
  CAPTURE(errors[0]);
  CHECK(errors[1] < .9 * errors[0]);

  const sequence whole = restored_well(b, exec, store), part = restored_well(b, exec, store, {.tokens = 290});
  const sequence straight = b.fork(exec, whole, 290);
  CHECK(snapshot(b, part) == snapshot(b, straight));
  b.close(exec, straight);
  b.close(exec, part);
  auto layers = b.restore_layers(exec, store, digest{});
  while (layers.ok() && !layers.done()) (void)b.decode_layer(exec, layers);
  REQUIRE(layers.ok());
  CHECK(snapshot(b, layers.of()) == snapshot(b, whole));
  b.close(exec, layers.of());
  // A turn has a mean of its own.
  save_well(a, exec, s, turn, {.first = 100, .chunk = 50, .own_mean_from = 100});
  CHECK(sections_in(turn, section_kind::mean).size() == 6);
  const sequence base = b.fork(exec, whole, 100);
  const sequence t = restored_well(b, exec, turn, {.after = base});
  CHECK(error_of(a, s, b, t, sinks, N - newest) < .9 * errors[0]);
}

TEST_CASE("chunks that hold no numbers, and means beyond any half, spoil no other row") {
  const host exec = one_thread();
  ours a(exec, spec_of<ours>(model()), coded_shape), b(exec, spec_of<ours>(model()), coded_shape);
  const auto with_nan = [](int, std::vector<float>& k, std::vector<float>& v) {
    k[std::size_t{110} * H * D] = std::numeric_limits<float>::quiet_NaN();
    v[std::size_t{120} * H * Dv] = std::numeric_limits<float>::infinity();
  };
  const auto far = [](int, std::vector<float>& k, std::vector<float>& v) {
    for (float& x : k) x += 1e6f;
    std::fill(v.begin(), v.end(), std::numeric_limits<float>::quiet_NaN());
  };
  memory_store store;
  const sequence s = written(a, exec, with_nan), t = written(a, exec, far);
  save_well(a, exec, s, store, {.sinks = 0, .newest = 0, .chunk = 50, .own_mean_from = 100});
  const payloads means = sections_in(store, section_kind::mean);
  REQUIRE(means.size() == 2);
  for (const auto& m : means) {
    for (const float x : floats_of(m.second)) CHECK(std::abs(x) < 2);
  }
  int raw_chunks = 0, other = 0;
  const sequence u = restored_well(b, exec, store);
  for_each_pair(a, s, b, u, [&](int layer, std::int64_t i, const auto& x, const auto& y) {
    if (layer % 2 == 0) ++(i / 50 == 2 ? raw_chunks : other) += i / 50 == 2 && !same_bits(x, y) ? 100000 : 0;
    for (std::size_t d = 0; d < x.size(); ++d) CHECK((i / 50 == 2 || std::abs(x[d] - y[d]) < 2));
  });
  CHECK(raw_chunks == 50 * 4 * H);
  b.close(exec, u);
  save_well(a, exec, t, store, {.chunk = 50, .own_mean_from = 100});
  for (const float x : floats_of(sections_in(store, section_kind::mean)[1].second)) CHECK(x == 0);
  (void)restored_well(b, exec, store);
}

TEST_CASE("a mean that no writer makes is refused, and leaves no trace") {
  const host exec = one_thread();
  ours a(exec, spec_of<ours>(model()), coded_shape);
  memory_store store;
  save_well(a, exec, written(a, exec), store, {.own_mean_from = 100});
  const std::vector<std::byte> frame = bytes_in(store);
  frame_view view;
  REQUIRE(check_frame(frame, view).ok());
  const auto counted = counts(a.stats());
  const auto restored_with = [&](const std::function<void(frame_section&, std::vector<std::byte>&)>& change, std::uint32_t more = 0) {
    frame_writer writer(view.header, view.header.sections + more);
    for (const frame_section& of : view.sections) {
      frame_section s = of;
      std::vector<std::byte> payload(frame.begin() + static_cast<std::ptrdiff_t>(of.offset),
                                     frame.begin() + static_cast<std::ptrdiff_t>(of.offset + of.bytes));
      if (s.kind == section_kind::mean) change(s, payload);
      writer.add(s, payload);
      if (more > 0 && s.kind == section_kind::mean) {
        writer.add(s, payload);
        more = 0;
      }
    }
    REQUIRE(store.put(digest{}, writer.finish()).ok());
    const restored r = a.restore(exec, store, digest{});
    if (r.ok()) a.close(exec, r.of);
    CHECK(counts(a.stats()) == counted);
    return r.state;
  };
  const auto same = [](frame_section&, std::vector<std::byte>&) {};
  CHECK(restored_with(same).ok());
  const auto refused = [&](const auto& change, std::uint32_t more = 0) {
    const status s = restored_with(change, more);
    CHECK(s == status::code::corrupt);
    CHECK_MESSAGE(std::string(s.what).find("frame: ") == 0, s.what);
  };
  refused(same, 1);  // twice
  refused([](frame_section&, std::vector<std::byte>& bytes) { bytes[5] = std::byte{0x7c}; });  // infinity, or NaN
  refused([](frame_section&, std::vector<std::byte>& bytes) { bytes.resize(bytes.size() - 2); });
  refused([](frame_section&, std::vector<std::byte>& bytes) { bytes.resize(bytes.size() + 2); });
  refused([](frame_section& s, std::vector<std::byte>&) { s.part = 0; });
  refused([](frame_section& s, std::vector<std::byte>&) { s.first_layer = 3, s.layers = 1; });  // of no span
  CHECK(restored_with([](frame_section& s, std::vector<std::byte>&) { s.layers = 1; }) == status::code::mismatch);
}
