// A decode of hundreds of steps on the device beside the same on the host: zones that move, forks, cuts, dropped and partly accepted steps.

#include "cache_twins.cuh"

#include <kvx/kvx.cuh>

#include <doctest/doctest.h>

#include <cstdint>

namespace {

using namespace kvx;
using test::twins;

template <element E, int D, int Dv, int P, key_sketch Sketch, bucket_scoring By, class Reranker>
using spec_of = spec<paged<E, page_shape{.tokens = P, .key_dim = D, .value_dim = Dv}, zones{.sink = 3, .local = 20}>,
                     sign_buckets<key_sketch(Sketch), bucket_scoring(By)>, Reranker>;
constexpr key_sketch balanced{.balance = 64}, plain{.centre = false, .balance = 0, .norms = false}, centred{.balance = 0};
constexpr key_sketch without_norms{.balance = 0, .norms = false}, signs_alone{.bits = 1, .balance = 0};
using ours = spec_of<float, 24, 16, 16, balanced, bucket_scoring{}, rsq_ip<4>>;
using faithful = spec_of<float, 32, 24, 16, plain, voting, rsq_ip<4>>;
using wide = spec_of<bf16, 72, 136, 32, centred, bucket_scoring{}, rsq_ip<4>>;
using mean = spec_of<float, 32, 24, 16, without_norms, bucket_scoring{.of = bucket_scoring::query::mean_query}, rsq_ip<4>>;
using true_logits = spec_of<kvx::half, 40, 8, 16, signs_alone, bucket_scoring{}, exact>;

/// Each compared number is one of an output or a log-sum-exp.
template <class Spec>
void decode(int steps, std::uint64_t seed) {
  twins<Spec> t(seed);
  const attend_options how{.keep = 12, .path = attend_options::route::retrieve};
  for (int i = 0; i < steps; ++i) {
    CAPTURE(i);
    t.step_once(how);
    if (i % 20 == 19) t.check_all();
  }
  CAPTURE(t.compared);
  CHECK(t.compared > 100 * steps);
  CHECK(t.apart == 0);
  CHECK(t.a.stats().retrieval_tokens > 0);
}

}  // namespace

TEST_CASE("300 steps on the device give what they give on the host") { decode<ours>(300, 7); }
TEST_CASE("the same with wide rows of bf16") { decode<wide>(24, 8); }
TEST_CASE("long and short sequences and prompts in one step take their own ways") {
  twins<ours> t(12);
  const attend_options how{.keep = 12};
  t.open = {{t.a.open(t.on_host), t.b.open(t.on_device)},
            {t.a.open(t.on_host), t.b.open(t.on_device)},
            {t.a.open(t.on_host), t.b.open(t.on_device)}};
  t.feed({{t.open[0].a, 2040}, {t.open[1].a, 90}}, {{t.open[0].b, 2040}, {t.open[1].b, 90}}, true, how);
  for (const std::int64_t prompt : {35, 1, 50}) {  // decoding beside a prompt, between others that decode, beside one that is short
    t.feed({{t.open[0].a, 2}, {t.open[2].a, prompt}, {t.open[1].a, 1}}, {{t.open[0].b, 2}, {t.open[2].b, prompt}, {t.open[1].b, 1}}, false,
           how);
  }
  t.feed({{t.open[1].a, 2}, {t.open[2].a, 1}}, {{t.open[1].b, 2}, {t.open[2].b, 1}}, false, how);
  t.check_all();
  CHECK(t.apart == 0);
}
TEST_CASE("the same with votes") { decode<faithful>(40, 10); }
TEST_CASE("the same with true logits instead of codes") { decode<true_logits>(30, 11); }
TEST_CASE("the same with the mean query's sum of signs, a centre and no norms") { decode<mean>(40, 9); }
