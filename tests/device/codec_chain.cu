// Rows in pages through chunks on the device: what comes back is what the host gives back from the same bytes, part by part too.

#include <kvx/codec/cuda/chain.cuh>
#include <kvx/codec/host/chain.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "device/chunks_on_device.cuh"

using namespace kvx;
using kvx::test::device_array;
using kvx::test::span_case;
using kvx::test::span_there;

namespace {

constexpr std::int64_t layers = 2, heads = 2, all_heads = 3, first_head = 1, dim = 24, tokens = 45, chunk_tokens = 32;
constexpr std::int64_t page_tokens = 16, first_position = 5, pages = 4, features = layers * heads * dim;

/// One sequence's rows of two layers in pages of their own order, the middle heads of each belonging to the span; the rest is never
/// touched.
template <class E>
struct paged_span {
  std::vector<E> rows = std::vector<E>(static_cast<std::size_t>(layers * pages * all_heads * page_tokens * pitch), E{});
  std::vector<std::int32_t> table = {2, 0, 3, 1};
  device_array<E> there{rows};
  device_array<std::int32_t> table_there{table};
  device_array<row_array<E>> arrays;
  device_array<row_array<const E>> arrays_read;

  static constexpr std::int64_t pitch = 40;  // of a row: a value part lies behind a key
  static constexpr std::int64_t layer_rows = pages * all_heads * page_tokens * pitch;

  paged_span() {
    std::vector<row_array<E>> a;
    std::vector<row_array<const E>> b;
    for (std::int64_t l = 0; l < layers; ++l) {
      a.push_back({there.data() + l * layer_rows, all_heads * page_tokens * pitch, page_tokens * pitch, pitch});
      b.push_back(a.back());
    }
    arrays = device_array<row_array<E>>(a);
    arrays_read = device_array<row_array<const E>>(b);
  }

  E& at(std::int64_t t, std::int64_t head, std::int64_t d) {
    const std::int64_t p = first_position + t;
    const std::int64_t page = table[static_cast<std::size_t>(p / page_tokens)];
    return rows[static_cast<std::size_t>(head / heads * layer_rows +
                                         ((page * all_heads + first_head + head % heads) * page_tokens + p % page_tokens) * pitch + d)];
  }
  void send() { there.write(rows); }
  void receive() { rows = there.read(); }
  template <class R>
  span_rows<R> view(const row_array<R>* of) const {
    return {of, first_head, heads, dim, table_there.data(), page_tokens, first_position};
  }
};

template <class E>
double apart(E a, E b) {
  return std::fabs(static_cast<double>(to_float(a)) - static_cast<double>(to_float(b)));
}

/// A run on the device, with everything that its calls take.
template <class E, class Codec>
struct coded_run {
  const span_case& s;
  bool foretold;
  token_predictor predictor = predictor_of();
  std::vector<kvx::half> outputs = halves(predictor.rank * features, .4f);
  std::vector<float> inputs;  // (tokens, rank)
  span_there there{model(0)};
  Codec codec;
  int log2_step;
  rope rope_of;
  chunk_run run{tokens, chunk_tokens, 0};
  std::int64_t room = round_up(chunk_bound<E>(chunk_tokens, features), 4);
  device_array<std::byte> bytes;
  device_array<chunk_result> results;
  rope_turns turns;
  turns_on_device turns_there;
  device_array<device_turns> heads_there;
  device_array<float> inputs_there;
  std::vector<const rope_turns*> host_heads;

  coded_run(const span_case& of, const Codec& c, int step, const rope& r, bool foretells = false)
      : s(of), foretold(foretells), codec(c), log2_step(step), rope_of(r), bytes(static_cast<std::size_t>(2 * room)), results(2) {
    run.components = kept_components(codec, s.model(), log2_step);
    std::vector<std::int64_t> positions;
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(first_position + t);
    turns = rope_turns(r, positions);
    turns_there = turns_on_device(there.exec, turns);
    std::vector<device_turns> of_heads;
    for (std::int64_t h = 0; h < layers * heads; ++h) {  // one head is not turned
      of_heads.push_back(h == 2 ? device_turns{} : turns_there.view());
      host_heads.push_back(h == 2 ? nullptr : &turns);
    }
    heads_there = device_array<device_turns>(of_heads);
    if (foretold) foretell();
  }

  static std::vector<kvx::half> halves(std::int64_t count, float size) {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<kvx::half> x;
    for (std::int64_t i = 0; i < count; ++i) x.push_back(round_to<kvx::half>(size * normal(random)));
    return x;
  }
  token_predictor predictor_of() const {
    if (!foretold) return {};
    constexpr std::int64_t width = 13, rank = 5;
    return {width, rank, halves(2 * width * rank, .5f)};
  }
  /// The inputs, by the device and by the host, from the same embeddings.
  void foretell() {
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> embeddings(static_cast<std::size_t>((tokens + 1) * predictor.embedding));
    for (float& x : embeddings) x = normal(random);
    std::fill_n(embeddings.begin(), predictor.embedding, quiet_nan);  // there is no token before the first
    inputs = predictor_inputs(host{}, plain_products(), predictor, embeddings.data(), tokens, true);
    const predictor_on_device p(there.exec, predictor);
    const device_array<float> embeddings_there(embeddings);
    const device_array<std::byte> scratch(static_cast<std::size_t>(predictor_inputs_scratch(p, tokens)));
    inputs_there = device_array<float>(inputs.size());
    predictor_inputs(there.exec, tiled_products(), p, embeddings_there.data(), tokens, true, scratch.data(), inputs_there.data());
    there.stream.wait();
    const auto got = inputs_there.read();
    double worst = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto t = static_cast<std::int64_t>(i) / predictor.rank, r = static_cast<std::int64_t>(i) % predictor.rank;
      worst = std::max(worst, apart(got[static_cast<std::size_t>(r * tokens + t)], inputs[i]));
    }
    CHECK(worst < 1e-5);
    run.inputs = inputs_there.data();
  }
  span_model model(std::int64_t first) const {
    span_model m = s.model();
    if (foretold) m.prediction = {predictor.rank, inputs.data() + first * predictor.rank, outputs.data()};
    return m;
  }
  span_turns host_turns() const { return {dim, host_heads.data()}; }

  std::vector<chunk_result> encode(const paged_span<E>& rows) {
    const encode_run_memory sizes(codec, run, there.model.view(), nullptr);
    const device_array<std::byte> memory(static_cast<std::size_t>(sizes.bytes));
    const encode_run_memory m(codec, run, there.model.view(), memory.data());
    const device_array<device_chunk> list(list_of(run, there.model, m.coefficients, m.factors, [&](std::int64_t i) {
      return std::span<std::byte>(bytes.data() + i * room, static_cast<std::size_t>(room));
    }));
    encode_chunk<Codec, E>(there.exec, tiled_products(), codec, there.model, run, rows.view(rows.arrays_read.data()), {heads_there.data()},
                           log2_step, list.data(), memory.data(), results.data());
    there.stream.wait();
    return results.read();
  }

  /// Restores the parts one after the other into pages that hold `before`.
  std::vector<chunk_result> restore(const std::vector<std::int64_t>& sizes, paged_span<E>& rows, const std::vector<restored_part>& parts) {
    std::int64_t most = 0;
    for (const auto& p : parts) most = std::max(most, p.heads * dim);
    const device_array<std::byte> memory(static_cast<std::size_t>(decode_run_memory(run, there.model.view(), most, nullptr).bytes));
    const decode_run_memory m(run, there.model.view(), most, memory.data());
    const device_array<device_chunk> list(list_of(run, there.model, m.coefficients, nullptr, [&](std::int64_t i) {
      return std::span<std::byte>(bytes.data() + i * room, static_cast<std::size_t>(sizes[static_cast<std::size_t>(i)]));
    }));
    open_chunk<E>(there.exec, codec, chunks_of(run, there.model.view(), list.data()), results.data());
    prepare_restore(there.exec, there.model, run, most, memory.data());
    for (const auto& p : parts)
      restore_rows<E>(there.exec, tiled_products(), there.model, run, rows.view(static_cast<const row_array<E>*>(rows.arrays.data())),
                      {heads_there.data()}, p, most, list.data(), results.data(), memory.data());
    there.stream.wait();
    rows.receive();
    return results.read();
  }

  /// What the host gives back from the device's bytes.
  std::vector<E> host_rows(const std::vector<chunk_result>& coded) const {
    const auto all = bytes.read();
    std::vector<E> rows(static_cast<std::size_t>(tokens * features));
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t first = i * chunk_tokens, count = std::min(tokens - first, chunk_tokens);
      std::vector<std::int64_t> positions;
      for (std::int64_t t = 0; t < count; ++t) positions.push_back(first_position + first + t);
      std::vector<const rope_turns*> of(host_heads.size(), nullptr);
      const rope_turns part = part_of(first, count);
      for (std::size_t h = 0; h < of.size(); ++h) of[h] = host_heads[h] != nullptr ? &part : nullptr;
      opened_chunk<E> opened;
      const std::span<const std::byte> chunk(all.data() + i * room, static_cast<std::size_t>(coded[static_cast<std::size_t>(i)].bytes));
      REQUIRE((open_chunk<Codec, E>(host{}, codec, model(first), chunk, count, features, opened)).ok());
      kvx::restore_rows(host{}, plain_products(), model(first), opened, {dim, of.data()}, 0,
                        tensor_view<E, 2>(rows.data() + first * features, count, features));
    }
    return rows;
  }
  rope_turns part_of(std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> positions;
    for (std::int64_t t = 0; t < count; ++t) positions.push_back(first_position + first + t);
    return rope_turns(rope_of, positions);
  }
};

rope turning(rope_pairs::order order) {
  rope r;
  r.pairs = {order, 16};
  r.scaled = rope::scaling::yarn;  // keys become longer
  r.factor = 4;
  return r;
}

template <class E, class Codec>
void check_run(const Codec& codec, int log2_step, rope_pairs::order order, bool weighted, bool foretold) {
  const span_case s(layers * heads, dim, 4, weighted);
  coded_run<E, Codec> run(s, codec, log2_step, turning(order), foretold);
  paged_span<E> rows;
  std::vector<float> plain = s.rows(tokens, 7);
  if (foretold)
    add_prediction(host{}, plain_products(), run.model(0).prediction, features, 0, 1,
                   tensor_view<float, 2>(plain.data(), tokens, features));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < layers * heads; ++h) {
      std::vector<float> key(plain.begin() + t * features + h * dim, plain.begin() + t * features + (h + 1) * dim);
      const rope_turns* const of = run.host_heads[static_cast<std::size_t>(h)];
      if (of != nullptr) turn_key(key.data(), of->pairs(), of->of(t), of->magnitude(), true);
      for (std::int64_t d = 0; d < dim; ++d) rows.at(t, h, d) = round_to<E>(key[static_cast<std::size_t>(d)]);
    }
  }
  rows.send();
  const auto coded = run.encode(rows);
  std::vector<std::int64_t> sizes;
  for (const auto& c : coded) {
    CHECK(c.code == status::code::ok);
    CHECK(c.kind != chunk_kind::rows);
    sizes.push_back(c.bytes);
  }
  const std::vector<E> expected = run.host_rows(coded);
  paged_span<E> back;
  const E poison = round_to<E>(1234);
  std::fill(back.rows.begin(), back.rows.end(), poison);
  back.send();
  // Layer by layer, and tokens in two parts: everything once.
  const std::int64_t cut = 19;
  const auto results = run.restore(
      sizes, back, {{0, heads, 0, tokens}, {heads, heads, 0, cut}, {heads, 1, cut, tokens - cut}, {heads + 1, 1, cut, tokens - cut}});
  for (const auto& r : results) CHECK(r.code == status::code::ok);
  double worst = 0, error = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < layers * heads; ++h) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const E x = back.at(t, h, d), y = expected[static_cast<std::size_t>(t * features + h * dim + d)];
        // Floats: sums of 96 terms of up to 60 in another order; others: one rounding more to E.
        const double last_place = std::same_as<E, float> ? 0x1p-16 : std::same_as<E, kvx::half> ? 0x1p-10 : 0x1p-7;
        worst = std::max(worst, apart(x, y) / (last_place * (1 + std::fabs(static_cast<double>(to_float(y))))));
        error = std::max(error, apart(x, rows.at(t, h, d)));
        back.at(t, h, d) = poison;
      }
    }
  }
  CHECK(worst <= 1);
  CHECK(error < 12);
  CHECK(std::all_of(back.rows.begin(), back.rows.end(), [&](E x) { return x == poison; }));  // and nothing else was written
}

}  // namespace

TEST_CASE("rows go in and come out as the host reads the same bytes: every codec, element, order of pairs, parts in any order, foretold") {
  check_run<float>(kvtc_entropy{}, -500, rope_pairs::order::halves, true, true);
  check_run<kvx::half>(kvtc_entropy{}, -300, rope_pairs::order::interleaved, false, false);
  check_run<bf16>(kvtc_faithful<rans>{}, 0, rope_pairs::order::none, true, true);
  check_run<float>(kvtc_faithful<fixed_width>{}, 0, rope_pairs::order::interleaved, true, false);
}

TEST_CASE("coefficients of the device code to what the host's code to, within their rounding") {
  const span_case s(layers * heads, dim, 4);
  coded_run<float, kvtc_entropy> run(s, {}, -256, rope{});
  paged_span<float> rows;
  const std::vector<float> plain = s.rows(tokens, 9);
  for (std::int64_t i = 0; i < tokens * features; ++i)
    rows.at(i / features, i % features / dim, i % dim) = plain[static_cast<std::size_t>(i)];
  rows.send();
  const auto coded = run.encode(rows);
  std::vector<std::byte> out(100000);
  std::int64_t bytes = 0;
  REQUIRE(encode_chunk(host{}, plain_products(), kvtc_entropy{}, s.model(),
                       tensor_view<const float, 2>(plain.data(), chunk_tokens, features), {}, -256, out, bytes)
              .ok());
  CHECK(std::abs(coded[0].bytes - bytes) <= 8);  // symbols at the edge of a bin may fall to either side
}

TEST_CASE("rows that no coefficient holds are stored to the bit, beside chunks that are coded; damaged chunks leave their rows alone") {
  const span_case s(layers * heads, dim, 4);
  coded_run<float, kvtc_entropy> run(s, {}, -256, turning(rope_pairs::order::halves));
  paged_span<float> rows;
  const std::vector<float> plain = s.rows(tokens, 9);
  for (std::int64_t i = 0; i < tokens * features; ++i)
    rows.at(i / features, i % features / dim, i % dim) = plain[static_cast<std::size_t>(i)];
  rows.at(40, 1, 3) = quiet_nan;
  rows.send();
  const auto coded = run.encode(rows);
  CHECK(coded[0].kind == chunk_kind::step_rans);
  CHECK(coded[1].kind == chunk_kind::rows);
  CHECK(coded[1].bytes == chunk_bound<float>(tokens - chunk_tokens, features));
  std::vector<float> second;
  for (std::int64_t t = chunk_tokens; t < tokens; ++t) {
    for (std::int64_t f = 0; f < features; ++f) second.push_back(rows.at(t, f / dim, f % dim));
  }
  std::vector<std::byte> out(100000);
  std::int64_t bytes = 0;
  REQUIRE(encode_chunk(host{}, plain_products(), kvtc_entropy{}, s.model(),
                       tensor_view<const float, 2>(second.data(), tokens - chunk_tokens, features), {}, -256, out, bytes)
              .ok());
  const auto all = run.bytes.read();
  REQUIRE(coded[1].bytes == bytes);
  CHECK(std::memcmp(all.data() + run.room, out.data(), static_cast<std::size_t>(bytes)) == 0);
  paged_span<float> back;
  std::fill(back.rows.begin(), back.rows.end(), 55.0f);
  back.send();
  const auto results = run.restore({coded[0].bytes - 1, coded[1].bytes}, back, {{0, layers * heads, 0, tokens}});
  CHECK(results[0].code == status::code::truncated);
  CHECK(results[1].code == status::code::ok);
  bool same = true, alone = true;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t f = 0; f < features; ++f) {
      const float x = back.at(t, f / dim, f % dim), y = rows.at(t, f / dim, f % dim);
      if (t < chunk_tokens) alone = alone && x == 55;
      if (t >= chunk_tokens) same = same && (x == y || (std::isnan(x) && std::isnan(y)));
    }
  }
  CHECK(alone);
  CHECK(same);
}

TEST_CASE("encoding and restoring are captured, and replayed give the same") {
  const span_case s(layers * heads, dim, 4);
  coded_run<bf16, kvtc_entropy> run(s, {}, -256, turning(rope_pairs::order::halves));
  paged_span<bf16> rows;
  const std::vector<float> plain = s.rows(tokens, 9);
  for (std::int64_t i = 0; i < tokens * features; ++i)
    rows.at(i / features, i % features / dim, i % dim) = round_to<bf16>(plain[static_cast<std::size_t>(i)]);
  rows.send();
  const auto coded = run.encode(rows);
  const std::vector<std::byte> bytes = run.bytes.read();
  const encode_run_memory sizes(run.codec, run.run, run.there.model.view(), nullptr);
  const device_array<std::byte> memory(static_cast<std::size_t>(sizes.bytes));
  const encode_run_memory m(run.codec, run.run, run.there.model.view(), memory.data());
  const device_array<std::byte> again(static_cast<std::size_t>(2 * run.room));
  const device_array<device_chunk> list(list_of(run.run, run.there.model, m.coefficients, m.factors, [&](std::int64_t i) {
    return std::span<std::byte>(again.data() + i * run.room, static_cast<std::size_t>(run.room));
  }));
  const cudaStream_t stream = run.there.stream.get();
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  encode_chunk<kvtc_entropy, bf16>(run.there.exec, tiled_products(), {}, run.there.model, run.run, rows.view(rows.arrays_read.data()),
                                   {run.heads_there.data()}, run.log2_step, list.data(), memory.data(), run.results.data());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
  check("cudaGraphInstantiate", cudaGraphInstantiate(&replay, graph, 0));
  for (int round = 0; round < 2; ++round) check("cudaGraphLaunch", cudaGraphLaunch(replay, stream));
  run.there.stream.wait();
  const auto results = run.results.read();
  const auto written = again.read();
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(results[i].bytes == coded[i].bytes);
    CHECK(std::memcmp(written.data() + static_cast<std::int64_t>(i) * run.room, bytes.data() + static_cast<std::int64_t>(i) * run.room,
                      static_cast<std::size_t>(coded[i].bytes)) == 0);
  }
  (void)cudaGraphExecDestroy(replay);
  (void)cudaGraphDestroy(graph);
}

TEST_CASE("misuse") {
  const span_case s(layers * heads, dim, 4);
  coded_run<float, kvtc_entropy> run(s, {}, -256, rope{});
  const paged_span<float> rows;
  const auto view = rows.view(static_cast<const row_array<float>*>(rows.arrays.data()));
  const auto restore = [&](const restored_part& part, const chunk_run& of, std::int64_t most = features) {
    restore_rows<float>(run.there.exec, tiled_products(), run.there.model, of, view, {}, part, most, nullptr, nullptr, nullptr);
  };
  CHECK_THROWS_AS(restore({0, 5, 0, 1}, run.run), usage_error);
  CHECK_THROWS_AS(restore({0, 1, 40, 6}, run.run), usage_error);
  CHECK_THROWS_AS(restore({0, 4, 0, 1}, run.run, 50), usage_error);
  CHECK_THROWS_AS(restore({0, 1, 0, 1}, {tokens, 0, 5}), usage_error);
  const coded_run<float, kvtc_entropy> foretold(s, {}, -256, rope{}, true);
  CHECK_THROWS_AS(prepare_restore(foretold.there.exec, foretold.there.model, run.run, features, nullptr), usage_error);
  CHECK_THROWS_AS(restore({0, 1, 0, 1}, {tokens, chunk_tokens, features + 1}), usage_error);
}
