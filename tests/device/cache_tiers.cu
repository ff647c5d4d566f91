// A cache in tiers on the device beside the same on the host: forks, cuts, dropped and partly accepted steps, graphs.

#include "cache_on_host.cuh"

#include <support/feed.hpp>

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace kvx;
using test::append_all, test::attend_all, test::device_array, test::token, test::tokens;

constexpr page_shape shape{.tokens = 16, .key_dim = 24, .value_dim = 20};
constexpr zones cut{.sink = 3, .local = 20};
template <key_sketch Sketch, tiers Others>
using spec_of = spec<paged<bf16, shape, cut>, sign_buckets<key_sketch(Sketch)>, rsq_ip<4, tiers(Others)>>;
constexpr key_sketch balanced{.balance = 64};
using tiered = spec_of<balanced, tiers{.value_bits = 4, .tail = true}>;
using untiered = spec_of<balanced, tiers{}>;

const geometry sizes{.layers = 2,
                     .kv_heads = 2,
                     .query_heads = 6,
                     .max_tokens = 700,
                     .max_sequences = 3,
                     .kinds = {layer_kind::retrieve(), layer_kind::window(20, 3)}};
const attend_options how{
    .keep = 6, .breadth = {.fraction = .2, .per_kept = 0}, .path = attend_options::route::retrieve, .others = {.skip = 0}};

/// All columns of the retrieval zone of a sequence, values included.
template <class Cache>
std::vector<std::byte> columns_of(const Cache& c, sequence s) {
  std::vector<std::byte> bytes;
  const std::int64_t end = edge(Cache::zones, c.length(s), shape.tokens) / shape.tokens;
  const auto blocks = tiered::columns(shape);
  for (int i = 0; i < tiered_column_count; ++i) {
    const column_array column = c.column(0, i);
    for (std::int64_t j = 0; column.data != nullptr && j < end; ++j) {
      for (int h = 0; h < 2; ++h) {
        const std::byte* const block = column.at(c.pages(0, s)[static_cast<std::size_t>(j)], h);
        bytes.insert(bytes.end(), block, block + blocks[static_cast<std::size_t>(i)].block_bytes);
      }
    }
  }
  return bytes;
}

/// Two caches to which the same is done. Outputs agree: weights of coded rows are rounded on the host alone, to 1/254 of the largest.
struct twins {
  host on_host = test::one_thread();
  test::test_stream stream;
  device on_device{.stream = stream.get()};
  cache<host, tiered> a{on_host, {}, sizes};
  test::cache_on_host<tiered> b{on_device, {}, sizes};
  token next = 1;

  struct pair {
    sequence a, b;
  };
  pair open() { return {a.open(on_host), b.open(on_device)}; }

  /// One step of so many new tokens for each sequence, and which of them are accepted; less than 0: the step is dropped.
  void feed(const std::vector<pair>& of, std::int64_t each, std::int64_t accepted, const attend_options& options = how) {
    std::vector<advance> on_a, on_b;
    for (const pair& p : of) {
      on_a.push_back({p.a, each});
      on_b.push_back({p.b, each});
    }
    const std::vector<token> ids = tokens(next, each * std::ssize(of));
    next += static_cast<token>(ids.size());
    step x = a.begin(on_host, on_a), y = b.begin(on_device, on_b);
    append_all(a, on_host, x, ids);
    append_all(b, on_device, y, ids);
    const std::vector<float> found = attend_all(a, on_host, x, ids, options), got = attend_all(b, on_device, y, ids, options);
    std::int64_t apart = 0;
    for (std::size_t i = 0; i < got.size(); ++i) apart += !(std::abs(found[i] - got[i]) < 4e-3f);
    CHECK(apart == 0);
    if (accepted < 0) return;
    const std::vector<std::int64_t> kept(of.size(), accepted);
    a.commit(on_host, x, kept);
    b.commit(on_device, y, kept);
    for (const pair& p : of) CHECK(columns_of(a, p.a) == columns_of(b, p.b));
  }
};

}  // namespace

TEST_CASE("forks, cuts, dropped and partly accepted steps give what they give on the host") {
  twins t;
  const twins::pair s = t.open();
  t.feed({s}, 120, 120);
  t.feed({s}, 3, 2);
  const twins::pair f{t.a.fork(t.on_host, s.a), t.b.fork(t.on_device, s.b)};
  t.feed({s, f}, 2, -1);
  t.feed({s, f}, 30, 21);
  t.a.truncate(t.on_host, s.a, 100);
  t.b.truncate(t.on_device, s.b, 100);
  t.feed({s, f}, 1, 1);
  t.feed({s}, 50, 50);
  attend_options other = how;
  other.keep = 0;
  t.feed({s, f}, 1, 1, other);
  other.others = {.coded = false, .tail = true, .skip = 0};
  other.keep = 9;
  t.feed({s, f}, 1, 1, other);
  for (const bool tiers : {true, false}) {  // rows of the layer's heads together
    other.others = {.coded = tiers, .tail = tiers, .skip = 0};
    other.budget.of = retrieve_budget::kind::layer;
    t.feed({s, f}, 2, 1, other);
  }
  CHECK(t.a.stats().retrieval_tokens > 0);
}

TEST_CASE("without coded rows and tail: what a cache without tiers gives, bit for bit; a captured step is six launches and an append") {
  const test::test_stream stream;
  const device exec{.stream = stream.get()};
  test::cache_on_host<tiered> a(exec, {}, sizes);
  test::cache_on_host<untiered> b(exec, {}, sizes);
  const sequence s = a.open(exec), r = b.open(exec);
  for (const std::int64_t n : {150, 1, 2}) {
    const std::vector<token> ids = tokens(1, n);
    step x = a.begin(exec, {{s, n}}), y = b.begin(exec, {{r, n}});
    append_all(a, exec, x, ids);
    append_all(b, exec, y, ids);
    attend_options rows = how;
    rows.others = {.coded = false, .tail = false};
    CHECK(attend_all(a, exec, x, ids, rows) == attend_all(b, exec, y, ids, rows));
    a.commit(exec, x);
    b.commit(exec, y);
  }

  // The same step by calls and from a graph.
  cache<device, tiered>& c = a.on_device();
  const sequence g = a.fork(exec, s);
  const std::vector<token> id = tokens(500, 1);
  const auto of = [&](test::part what, int heads, int dim) { return device_array<float>(test::rows_of<float>(id, what, 0, heads, dim)); };
  const device_array<float> k = of(test::part::key, 2, shape.key_dim), v = of(test::part::value, 2, shape.value_dim),
                            q = of(test::part::query, 6, shape.key_dim), direct(6 * 20), replayed(6 * 20);
  const auto launch_step = [&](const step& x, float* out) {
    c.append(exec, const_cast<step&>(x), 0, static_cast<const float*>(k.data()), static_cast<const float*>(v.data()));
    c.attend(exec, x, 0, static_cast<const float*>(q.data()), out, how);
  };
  {
    const step x = c.begin(exec, {{s, 1}});
    launch_step(x, direct.data());
  }
  cudaGraph_t nodes = nullptr;
  cudaGraphExec_t graph = nullptr;
  for (const sequence now : {s, g}) {
    const step x = c.begin(exec, {{now, 1}});
    if (nodes == nullptr) {
      REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
      launch_step(x, replayed.data());
      REQUIRE(cudaStreamEndCapture(stream.get(), &nodes) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&graph, nodes, 0) == cudaSuccess);
      std::size_t count = 0;
      REQUIRE(cudaGraphGetNodes(nodes, nullptr, &count) == cudaSuccess);
      std::vector<cudaGraphNode_t> all(count);
      REQUIRE(cudaGraphGetNodes(nodes, all.data(), &count) == cudaSuccess);
      int kernels = 0;
      for (const cudaGraphNode_t node : all) {
        cudaGraphNodeType type{};
        REQUIRE(cudaGraphNodeGetType(node, &type) == cudaSuccess);
        kernels += type == cudaGraphNodeTypeKernel;
      }
      CHECK(kernels == 7);
    }
    REQUIRE(cudaGraphLaunch(graph, stream.get()) == cudaSuccess);
    stream.wait();
    CHECK(replayed.read() == direct.read());
  }
  (void)cudaGraphExecDestroy(graph);
  (void)cudaGraphDestroy(nodes);
}
