// Caches that are saved by a calibrated codec: what is raw comes back to the bit, the rest within its step, by layers, prefixes, any
 // threads.

#include "coded_caches.hpp"
#include "stored.hpp"

#include <support/feed.hpp>
#include <support/small_calibration.hpp>
#include <support/thread_pool.hpp>

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
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace kvx;
using namespace kvx::test;
using namespace kvx::test::coded_caches;

std::uint64_t bytes_in(const memory_store& s) {
  memory_store::reader reader;
  REQUIRE(s.open(digest{}, reader).ok());
  return reader.size();
}

/// A step of rows that the calibration foretells wholly: keys turned, both predicted from their ids.
template <class Cache>
sequence foretold(Cache& c, const host& exec, const calibrated_model& m, std::span<const std::int32_t> ids) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const sequence s = c.open(exec);
  step step = c.begin(exec, {{s, n}});
  std::vector<std::int64_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  for (int layer = 0; layer < L; ++layer) {
    std::vector<float> rows[2];
    for (const row_part which : {row_part::key, row_part::value}) {
      const int dim = which == row_part::key ? D : Dv;
      std::vector<float>& to = rows[static_cast<std::size_t>(which)];
      to.resize(static_cast<std::size_t>(n * H * dim));
      for (std::size_t span = 0; span < m.of().spans.size(); ++span) {
        const feature_span& of = m.of().spans[span];
        const auto at = std::find(of.layers.begin(), of.layers.end(), layer);
        if (at == of.layers.end()) continue;
        const span_basis& b = m.basis(span, which);
        const token_predictor& p = m.predictor(which);
        for (std::int64_t t = 0; t < n; ++t) {
          float z[12] = {}, e[12] = {};
          embed(&one, ids.subspan(static_cast<std::size_t>(t), 1), e);
          normed_embedding(e, 6, z);
          if (t > 0) embed(&one, ids.subspan(static_cast<std::size_t>(t - 1), 1), e + 6);
          normed_embedding(t > 0 ? e + 6 : nullptr, 6, z + 6);
          for (std::int64_t f = 0; f < of.heads * dim; ++f) {
            const std::int64_t feature = (at - of.layers.begin()) * of.heads * dim + f;
            double x = static_cast<double>(b.mean[static_cast<std::size_t>(feature)]);
            for (std::int64_t r = 0; r < p.rank; ++r) {
              double input = 0;
              for (int i = 0; i < 12; ++i)
                input += static_cast<double>(z[i]) * static_cast<double>(to_float(p.inputs[static_cast<std::size_t>(i * p.rank + r)]));
              x += input * static_cast<double>(to_float(b.outputs[static_cast<std::size_t>(r * b.features() + feature)]));
            }
            to[static_cast<std::size_t>((t * H + of.first_head) * dim + f)] = static_cast<float>(x);
          }
        }
      }
    }
    const rope& turn = m.of().turns[m.of().turn_of_layer[static_cast<std::size_t>(layer)]];
    const rope_turns turns(turn, positions);
    for (std::int64_t t = 0; t < n; ++t) {
      for (int h = 0; h < H; ++h) turn_key(rows[0].data() + (t * H + h) * D, turn.pairs, turns.of(t), 1, true);
    }
    c.append(exec, step, layer, rows[0].data(), rows[1].data());
  }
  c.commit(exec, step);
  return s;
}

std::vector<std::int32_t> ids_of(std::int64_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 100);
  return ids;
}

}  // namespace

TEST_CASE_TEMPLATE("raw tokens come back to the bit, coded ones within their step or plan", C, ours, paper) {
  const host exec = one_thread();
  C a(exec, spec_of<C>(model()), coded_shape), b(exec, spec_of<C>(model()), coded_shape);
  const sequence s = a.open(exec);
  feed(a, exec, s, tokens(1, 300));
  memory_store store;
  // Steps of 1/4 and 1/32: uniform errors of up to .7 steps, weights about 1. The plan's errors are those of few bits.
  for (const std::int16_t step : {std::int16_t{-512}, std::int16_t{-1280}}) {
    save_well(a, exec, s, store, {.chunk = 64, .log2_step = step});
    const double error = error_of(a, s, b, restored_well(b, exec, store), 4, 300 - 32);
    CAPTURE(error);
    if (std::is_same_v<C, ours>) CHECK((error < .5 * std::exp2(step / 256.0) && error > .2 * std::exp2(step / 256.0)));
    if (std::is_same_v<C, paper>) CHECK((error < .4 && error > .02));
  }
  for (const auto& ends : {std::pair<std::int64_t, std::int64_t>(0, 0), {9, 100}, {400, 7}, {4, 400}}) {
    const std::int64_t sinks = ends.first, newest = ends.second;
    CAPTURE(sinks);
    C c(exec, spec_of<C>(model()), coded_shape);
    save_well(a, exec, s, store, {.sinks = sinks, .newest = newest});
    const sequence t = restored_well(c, exec, store);
    if (sinks < 300 && newest < 300) {
      CHECK(error_of(a, s, c, t, sinks, 300 - newest) < .4);
    } else {
      CHECK(snapshot(a, s) == snapshot(c, t));
    }
  }
}

TEST_CASE("keys are turned back, and what ids foretell is taken out: rows that follow from the calibration take next to no bytes") {
  const host exec = one_thread();
  const auto m = model(3);
  ours a(exec, spec_of<ours>(m, 512), coded_shape), b(exec, spec_of<ours>(m, 512), coded_shape);
  const std::vector<std::int32_t> ids = ids_of(1100);  // more than one look-up of embeddings
  const sequence s = foretold(a, exec, *m, ids);
  memory_store store;
  save_well(a, exec, s, store, {.token_ids = ids, .sinks = 0, .newest = 0});
  const auto rows_of_layers_0_and_2 = static_cast<std::uint64_t>(1100 * 2 * H * (D + Dv)) * sizeof(float);
  const std::uint64_t others = 1100 * 4 + 2 * (16 + 64) * H * (D + Dv) * sizeof(float);  // ids; window layers
  CHECK(bytes_in(store) < others + rows_of_layers_0_and_2 / 8);
  const double error = error_of(a, s, b, restored_well(b, exec, store), 0, 1100);
  CHECK(error < 1e-3);  // of the keys of layers 0 and 2: floats turned back and forth

  float another = -1;
  ours c(exec, spec_of<ours>(m, 512), coded_shape);
  auto spec = spec_of<ours>(m, 512);
  spec.codec.embeddings.context = &another;
  ours d(exec, spec, coded_shape);
  CHECK(error_of(a, s, d, restored_well(d, exec, store), 0, 1100) > .01);  // the embeddings are asked for

  CHECK_THROWS_AS((void)a.save(exec, s, store, digest{}), usage_error);  // no ids
  spec.codec.embeddings.width = 7;
  ours narrow(exec, spec, coded_shape);
  CHECK_THROWS_AS((void)narrow.restore(exec, store, digest{}), usage_error);
  spec.codec.embeddings.run = nullptr;
  ours e(exec, spec, coded_shape);
  CHECK_THROWS_AS((void)e.restore(exec, store, digest{}), usage_error);

  // An id that the model does not have is not looked up.
  auto few = spec_of<ours>(m, 512);
  few.codec.embeddings.vocabulary = *std::max_element(ids.begin(), ids.end());
  ours f(exec, few, coded_shape);
  CHECK(f.restore(exec, store, digest{}).state == status::code::corrupt);
  CHECK(f.stats().sequences == 0);
  const sequence of_one = f.open(exec);
  feed(f, exec, of_one, tokens(1, 1));
  for (const std::int32_t id : {static_cast<std::int32_t>(few.codec.embeddings.vocabulary), -1}) {
    const std::vector<std::int32_t> unknown{id};
    CHECK_THROWS_AS((void)f.save(exec, of_one, store, digest{}, {.token_ids = unknown}), usage_error);
  }
}

TEST_CASE("a calibration that has a head twice, and another not at all, is refused") {
  const host exec = one_thread();
  ours a(exec, spec_of<ours>(std::make_shared<const calibrated_model>(small_calibration({L, H, D, Dv}, {{{1}, 0, 1}, {{1}, 0, 1}}, 0))),
         coded_shape);
  memory_store store;
  CHECK_THROWS_AS((void)a.save(exec, a.open(exec), store, digest{}), usage_error);
}

TEST_CASE("a prefix is the beginning of the whole; the longest stored one is found by its tokens") {
  const host exec = one_thread();
  const auto m = model(3);
  geometry dense = coded_shape;
  dense.kinds.assign(L, layer_kind::dense());
  ours a(exec, spec_of<ours>(m), dense), b(exec, spec_of<ours>(m), dense);
  const std::vector<std::int32_t> ids = ids_of(200);
  const sequence s = a.open(exec);
  feed(a, exec, s, tokens(1, 200));
  memory_store store;
  prefix_index prefixes;
  const digest family = a.family("salt");
  for (const std::size_t n : {std::size_t{40}, std::size_t{200}}) {
    const auto some = std::span(ids).first(n);
    const sequence part = a.fork(exec, s, static_cast<std::int64_t>(n));
    REQUIRE(a.save(exec, part, store, key_of(family, some), {.token_ids = some, .chunk = 64}).ok());
    prefixes.insert(family, some, key_of(family, some));
    a.close(exec, part);
  }
  const restored whole = b.restore(exec, store, key_of(family, ids));
  REQUIRE(whole.ok());
  for (const std::int64_t kept : {1, 4, 5, 63, 68, 150, 168, 199, 200}) {
    CAPTURE(kept);
    std::vector<std::int32_t> asked(ids.begin(), ids.begin() + kept);
    asked.push_back(-5);
    const restored r = b.restore_prefix(exec, store, prefixes, asked, {.salt = "salt"});
    REQUIRE_MESSAGE(r.ok(), message(r.state));
    CHECK(r.tokens == kept);
    const sequence straight = b.fork(exec, whole.of, r.tokens);
    CHECK(snapshot(b, r.of) == snapshot(b, straight));
    b.close(exec, r.of);
    b.close(exec, straight);
  }
  CHECK(b.restore_prefix(exec, store, prefixes, ids_of(40)).state == status::code::not_found);  // without the salt
  const std::vector<std::int32_t> none{7};
  CHECK(b.restore_prefix(exec, store, prefixes, none, {.salt = "salt"}).state == status::code::not_found);
  // An index that is wrong cannot give rows of other tokens, and hides no shorter prefix.
  std::vector<std::int32_t> wrong = ids;
  wrong[30] = 0;
  prefixes.insert(family, wrong, key_of(family, ids));
  const restored shorter = b.restore_prefix(exec, store, prefixes, wrong, {.salt = "salt"});
  REQUIRE_MESSAGE(shorter.ok(), message(shorter.state));
  CHECK(shorter.tokens == 30);
  const restored direct = b.restore(exec, store, key_of(family, std::span(ids).first(40)), {.tokens = 30});
  CHECK(snapshot(b, shorter.of) == snapshot(b, direct.of));
  prefix_index alone;
  alone.insert(family, wrong, key_of(family, ids));
  const restored other = b.restore_prefix(exec, store, alone, wrong, {.salt = "salt"});
  CHECK(other.state == status::code::mismatch);
  CHECK(std::string(other.state.what).find("token ids") != std::string::npos);
}

TEST_CASE("layer by layer gives the same rows; threads change no byte") {
  const host exec = one_thread();
  const host many{.threads = 3, .parallel = std_threads()};
  ours a(exec, spec_of<ours>(model()), coded_shape), b(exec, spec_of<ours>(model()), coded_shape);
  const sequence s = a.open(exec);
  feed(a, exec, s, tokens(1, 500));
  memory_store store, other;
  save_well(a, exec, s, store, {.chunk = 64, .own_mean_from = 100});
  save_well(a, many, s, other, {.chunk = 64, .own_mean_from = 100});
  std::vector<std::byte> bytes, others;
  REQUIRE(read_all(store, digest{}, 1 << 30, bytes).ok());
  REQUIRE(read_all(other, digest{}, 1 << 30, others).ok());
  CHECK(bytes == others);
  const sequence t = restored_well(b, exec, store);
  auto r = b.restore_layers(many, store, digest{});
  int pulls = 0;
  for (; r.ok() && !r.done(); ++pulls) CHECK(b.decode_layer(many, r).ok());
  CHECK(pulls == L);
  CHECK(snapshot(b, r.of()) == snapshot(b, t));
}

TEST_CASE("numbers that no transform takes stay as they are; other calibrations and codecs are refused by name") {
  const host exec = one_thread();
  ours a(exec, spec_of<ours>(model()), coded_shape), b(exec, spec_of<ours>(model()), coded_shape);
  const sequence s = a.open(exec);
  step step = a.begin(exec, {{s, 200}});
  for (int layer = 0; layer < L; ++layer) {
    auto k = rows_of<float>(tokens(1, 200), part::key, layer, H, D);
    const auto v = rows_of<float>(tokens(1, 200), part::value, layer, H, Dv);
    k[static_cast<std::size_t>(100 * H * D)] = std::numeric_limits<float>::quiet_NaN();
    k[static_cast<std::size_t>(150 * H * D + 3)] = std::numeric_limits<float>::infinity();
    a.append(exec, step, layer, k.data(), v.data());
  }
  a.commit(exec, step);
  memory_store store;
  save_well(a, exec, s, store, {.sinks = 0, .newest = 0, .chunk = 10});
  const sequence t = restored_well(b, exec, store);
  int raw_keys = 0;
  for_each_pair(a, s, b, t, [&](int layer, std::int64_t i, const auto& x, const auto& y) {
    if (layer % 2 == 0 && x.size() == D && (i / 10 == 10 || i / 10 == 15)) raw_keys += same_bits(x, y) ? 1 : -1000;
    if (layer % 2 == 0 && x.size() == D && i / 10 == 11) raw_keys += same_bits(x, y) ? -1000 : 0;
  });
  CHECK(raw_keys == 2 * 20 * H);

  const auto refused = [&](auto&& c, const char* field) {
    const restored r = c.restore(exec, store, digest{});
    CHECK(r.state == status::code::mismatch);
    CHECK_MESSAGE(std::string(r.state.what).find(field) != std::string::npos, r.state.what);
  };
  calibration changed = model()->of();
  changed.keys[0].mean[0] += 1;
  refused(ours(exec, spec_of<ours>(std::make_shared<const calibrated_model>(changed)), coded_shape), "calibration");
  using plain = cache<host, spec<ours::layout>>;
  refused(plain(exec, {}, coded_shape), "codec");

  CHECK_THROWS_AS((void)ours(exec, {}, coded_shape).restore(exec, store, digest{}), usage_error);  // no calibration
  geometry other = coded_shape;
  other.layers = 3;
  other.kinds.pop_back();
  CHECK_THROWS_AS((void)ours(exec, spec_of<ours>(model()), other).restore(exec, store, digest{}), usage_error);
  other = coded_shape;
  other.kinds[0] = layer_kind::window(40, 3);
  CHECK_THROWS_AS((void)ours(exec, spec_of<ours>(model()), other).restore(exec, store, digest{}), usage_error);  // a span of two kinds
}

TEST_CASE("a composition that another codec stores keeps the values of its policies") {
  const stored_by<paris_kv_faithful<bf16, 8>, calibrated<kvtc_entropy>> paris;
  CHECK(paris.reranker.rule.by == group_rule::kind::mean);
  const stored_by<ice_cache_faithful<bf16, 8>, calibrated<kvtc_entropy>> ice;
  CHECK(ice.index.interleave);
}
