// Decode steps captured in a graph once and replayed as lengths grow give what the same calls give one by one.

#include "device_array.cuh"

#include <support/token_rows.hpp>

#include <kvx/aliases.hpp>
#include <kvx/cache.hpp>
#include <kvx/cuda/device_runner.cuh>
#include <kvx/index/block_columns.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

namespace {

using namespace kvx;
using test::device_array, test::test_stream, test::token;

constexpr int D = 24, Dv = 16, H = 2, Q = 4, layers = 4;
template <placement Place>
using small_in = spec<paged<float, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}, zones{.sink = 3, .local = 20}, Place>,
                      sign_buckets<key_sketch{.balance = 64}>, rsq_ip<4>>;
using small = small_in<placement::resident>;
using small_far = small_in<placement::offload_uva>;
template <placement Place>
using ice_in = spec<paged<float, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}, zones{.sink = 16, .local = 20}, Place>,
                    dci_tree<dci_shape{.block = 32}>>;
using small_ice = ice_in<placement::resident>;
using small_tree = spec<small_ice::layout_type, dci_tree<dci_shape{.block = 32,
                                                                   .pack = dci_shape::packing::projection,
                                                                   .by = dci_shape::metric::keys,
                                                                   .rank = dci_shape::ranking::best_member,
                                                                   .first_promotion = 150}>>;
using dense_only = spec<paged<float, page_shape{.tokens = 16, .key_dim = D, .value_dim = Dv}>>;

/// Inputs and outputs at addresses that stay, for steps of N new tokens.
struct step_memory {
  std::int64_t tokens;
  std::vector<device_array<float>> k, v, q, out, lse;  // (layers)

  explicit step_memory(std::int64_t n) : tokens(n) {
    for (int l = 0; l < layers; ++l) {
      k.emplace_back(static_cast<std::size_t>(n * H * D));
      v.emplace_back(static_cast<std::size_t>(n * H * Dv));
      q.emplace_back(static_cast<std::size_t>(n * Q * D));
      out.emplace_back(static_cast<std::size_t>(n * Q * Dv));
      lse.emplace_back(static_cast<std::size_t>(n * Q));
    }
  }
  void write(std::span<const token> ids) {
    for (int l = 0; l < layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      k[at].write(test::rows_of<float>(ids, test::part::key, l, H, D));
      v[at].write(test::rows_of<float>(ids, test::part::value, l, H, Dv));
      q[at].write(test::rows_of<float>(ids, test::part::query, l, Q, D));
    }
  }
  std::vector<float> read() const {
    std::vector<float> all;
    for (int l = 0; l < layers; ++l) {
      for (const auto* x : {&out[static_cast<std::size_t>(l)], &lse[static_cast<std::size_t>(l)]}) {
        const std::vector<float> part = x->read();
        all.insert(all.end(), part.begin(), part.end());
      }
    }
    return all;
  }
};

template <class Spec>
struct decoder {
  Spec of;
  test_stream stream;
  device exec{.stream = stream.get()};
  geometry g{.layers = layers,
             .kv_heads = H,
             .query_heads = Q,
             .max_tokens = 480,
             .max_sequences = 3,
             .kinds = {layer_kind::dense(), layer_kind::retrieve(), layer_kind::window(40, 3), layer_kind::retrieve()},
             .near_tokens = offloads<typename Spec::layout_type>() ? 180 : 0,
             .hot_rows = packs_blocks<typename Spec::index_type> ? 64 : 14};
  cache<device, Spec> c{exec, of, g};
  sequence a = c.open(exec), b = c.open(exec);

  explicit decoder(const Spec& s = {}) : of(s) {}

  void launch(step& s, const step_memory& m, const attend_options& how) {
    for (int l = 0; l < layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      attend_options options = how;
      options.lse = m.lse[at].data();
      c.append(exec, s, l, static_cast<const float*>(m.k[at].data()), static_cast<const float*>(m.v[at].data()));
      c.attend(exec, s, l, static_cast<const float*>(m.q[at].data()), m.out[at].data(), options);
    }
  }
  std::vector<float> one_by_one(step_memory& m, std::span<const token> ids, std::initializer_list<advance> batch,
                                const attend_options& how) {
    m.write(ids);
    step s = c.begin(exec, batch);
    launch(s, m, how);
    c.commit(exec, s);
    stream.wait();
    return m.read();
  }
};

struct graph {
  cudaGraph_t nodes = nullptr;
  cudaGraphExec_t exec = nullptr;
  graph() = default;
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  ~graph() {
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
    if (nodes != nullptr) (void)cudaGraphDestroy(nodes);
  }
  std::int64_t launches() const {
    std::size_t count = 0;
    REQUIRE(cudaGraphGetNodes(nodes, nullptr, &count) == cudaSuccess);
    std::vector<cudaGraphNode_t> all(count);
    REQUIRE(cudaGraphGetNodes(nodes, all.data(), &count) == cudaSuccess);
    std::int64_t kernels = 0;
    for (const cudaGraphNode_t node : all) {
      cudaGraphNodeType type{};
      REQUIRE(cudaGraphNodeGetType(node, &type) == cudaSuccess);
      CHECK(type != cudaGraphNodeTypeMemAlloc);
      kernels += type == cudaGraphNodeTypeKernel;
    }
    return kernels;
  }
};

/// The same tokens go through two caches: one is called step by step, of the other one step is captured and replayed.
template <class Spec, class Replayed = Spec>
void replay(const attend_options& how, float tolerance, std::int64_t rounds, const Spec& of = {}) {
  decoder<Spec> direct{of};
  decoder<Replayed> replayed{[&] {
    if constexpr (std::is_same_v<Spec, Replayed>) return of;
    return Replayed{};
  }()};
  const std::vector<token> first = [] {
    std::vector<token> ids;
    for (token i = 0; i < 130; ++i) ids.push_back(i + 1);
    return ids;
  }();
  step_memory prompt(130), x(3), y(3);
  direct.one_by_one(prompt, first, {{direct.a, 90}, {direct.b, 40}}, how);
  replayed.one_by_one(prompt, first, {{replayed.a, 90}, {replayed.b, 40}}, how);

  if (how.budget.of == retrieve_budget::kind::layer) {  // scratch is planned for what is the default
    y.write(std::vector<token>{1, 2, 3});
    step s = replayed.c.begin(replayed.exec, {{replayed.a, 1}, {replayed.b, 2}});
    replayed.launch(s, y, how);
  }
  graph captured;
  std::int64_t apart = 0;
  for (std::int64_t i = 0; i < rounds; ++i) {
    CAPTURE(i);
    const std::vector<token> ids = {1000 + 3 * static_cast<token>(i), 1001 + 3 * static_cast<token>(i), 1002 + 3 * static_cast<token>(i)};
    const std::vector<float> expected = direct.one_by_one(x, ids, {{direct.a, 1}, {direct.b, 2}}, how);
    y.write(ids);
    step s = replayed.c.begin(replayed.exec, {{replayed.a, 1}, {replayed.b, 2}});
    if (i == 0) {
      REQUIRE(cudaStreamBeginCapture(replayed.stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
      replayed.launch(s, y, how);
      REQUIRE(cudaStreamEndCapture(replayed.stream.get(), &captured.nodes) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&captured.exec, captured.nodes, 0) == cudaSuccess);
      CHECK(captured.launches() <= 6 * layers);
    } else {
      replayed.c.replayed(s);
    }
    REQUIRE(cudaGraphLaunch(captured.exec, replayed.stream.get()) == cudaSuccess);
    replayed.c.commit(replayed.exec, s);
    replayed.stream.wait();
    const std::vector<float> found = y.read();
    REQUIRE(found.size() == expected.size());
    for (std::size_t j = 0; j < found.size(); ++j) apart += !(std::abs(found[j] - expected[j]) <= tolerance);
    if (i % 12 == 7) {  // cuts and forks between replays
      replayed.c.truncate(replayed.exec, replayed.b, replayed.c.length(replayed.b) - 5);
      direct.c.truncate(direct.exec, direct.b, direct.c.length(direct.b) - 5);
    }
    if (i % 12 == 10) {
      const auto exchange = [](auto& d) {
        const sequence f = d.c.fork(d.exec, d.a);
        d.c.close(d.exec, d.a);
        d.a = f;
      };
      exchange(direct);
      exchange(replayed);
    }
  }
  CHECK(apart == 0);
  if constexpr (offloads<typename Replayed::layout_type>()) CHECK(replayed.c.stats().far_moved > 0);
}

}  // namespace

TEST_CASE("a replayed step gives the bits of the same calls, retrieving") {
  replay<small>({.keep = 10, .path = attend_options::route::retrieve}, 0, 32);
}

TEST_CASE("a replayed step with one budget for the heads of a layer, rows near and far; short sequences attend to everything") {
  constexpr retrieve_budget of_layer{retrieve_budget::kind::layer};
  replay<small, small_far>({.keep = 10, .path = attend_options::route::retrieve, .budget = of_layer}, 0, 24);
  replay<small>({.keep = 10, .budget = of_layer}, 1e-4f, 5);
}

TEST_CASE("a replayed step that chooses rows in host memory gives the bits of calls with all rows near") {
  replay<small, small_far>({.keep = 10, .path = attend_options::route::retrieve}, 0, 24);
}

TEST_CASE("a replayed step gives the bits of the same calls, with semantic pages, and learns as they do") {
  replay<small_ice>({.keep = 32, .path = attend_options::route::retrieve}, 0, 32);
}

TEST_CASE("a replayed step leads the beams of the same calls through a tree that grows") {
  replay<small_tree>({.keep = 32, .pages = {.beam = 2}, .path = attend_options::route::retrieve}, 0, 26);
}

TEST_CASE("a replayed step takes the pages that other layers and steps have found, where the same calls do") {
  small_ice again;
  again.index.reuse = {.layers = 2, .steps = 3};
  replay<small_ice>({.keep = 32, .path = attend_options::route::retrieve}, 0, 26, again);
}

TEST_CASE("a replayed step that finds semantic pages in host memory gives the bits of calls with all rows near") {
  replay<small_ice, ice_in<placement::offload_bulk>>({.keep = 32, .path = attend_options::route::retrieve}, 0, 32);
}

TEST_CASE("short sequences in a replayed step attend to everything") { replay<small>({.keep = 10}, 1e-4f, 17); }

TEST_CASE("a replayed step gives the bits of the same calls, dense") { replay<dense_only>({}, 0, 17); }

TEST_CASE("what a capture does not survive is refused, and the capture survives") {
  decoder<dense_only> d;
  step_memory m(1);
  const std::vector<token> id = {7};
  d.one_by_one(m, id, {{d.a, 1}}, {});
  step s = d.c.begin(d.exec, {{d.a, 1}});
  REQUIRE(cudaStreamBeginCapture(d.stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  d.launch(s, m, {});
  CHECK_THROWS_AS(d.c.begin(d.exec, {{d.b, 1}}), usage_error);
  graph captured;
  REQUIRE(cudaStreamEndCapture(d.stream.get(), &captured.nodes) == cudaSuccess);
  CHECK(captured.launches() > 0);
}
