// The audit of a model's layers: every layer and token once, nothing missed where everything is kept, and the rule that names layers.

#include "tiny_model.hpp"

#include <audit.hpp>
#include <caches.hpp>
#include <forward_pass.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace decode_loop;

namespace {

audited_cache example() {
  audited_cache cache{"paris_kv", std::vector<kvx::attention_audit>(4)};
  cache.layers[0].add(.7, .1);
  cache.layers[1].add(.9, .1);
  cache.layers[2].add(.9, .2);
  return cache;
}

}  // namespace

TEST_CASE("every layer of every retrieving cache is audited, token by token, on dense attention's own activations") {
  const kvx::host exec{.threads = 2};
  const model weights(gguf(test::tiny_model(), "tiny"));
  constexpr std::size_t context = 2050, scored = 3;
  std::vector<token_id> ids(context + scored);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<token_id>(i * 37 % 300);
  forward_pass pass(weights, exec, 256);
  std::vector<const cache_choice*> choices;
  for (const cache_choice& choice : all_caches()) {
    if (choice.retrieves) choices.push_back(&choice);
  }
  const auto few = audit_layers(pass, exec, ids, context, choices, 8);
  const auto all = audit_layers(pass, exec, ids, context, choices, 4096);
  REQUIRE(few.size() == choices.size());
  for (std::size_t c = 0; c < few.size(); ++c) {
    CAPTURE(few[c].name);
    CHECK(few[c].name == choices[c]->name);
    REQUIRE(few[c].layers.size() == weights.shape.layers);
    for (std::size_t layer = 0; layer < few[c].layers.size(); ++layer) {
      for (const kvx::attention_audit& audit : {few[c].layers[layer], all[c].layers[layer]}) {
        CHECK(audit.tokens == static_cast<std::int64_t>(scored));
        CHECK(audit.pairs == static_cast<std::int64_t>(scored * weights.shape.query_heads));
        CHECK(audit.unjudged == 0);
      }
      if (few[c].name.find("_tiered") != std::string::npos) continue;  // rows of its own number, and a log-sum-exp that covers estimates
      CHECK(few[c].layers[layer].mean_mass() < .9);
      CHECK(few[c].layers[layer].worst_error > 0);
      CHECK(all[c].layers[layer].least_mass == doctest::Approx(1).epsilon(1e-4));
      CHECK(all[c].layers[layer].worst_error < 1e-3);
    }
  }
}

TEST_CASE("a layer should be dense where its mass is low or its output far off, on the mean") {
  const audited_cache cache = example();
  CHECK(should_be_dense(cache.layers[0]));
  CHECK_FALSE(should_be_dense(cache.layers[1]));
  CHECK(should_be_dense(cache.layers[2]));
  CHECK_FALSE(should_be_dense(cache.layers[3]));  // nothing seen
}

TEST_CASE("the audit in words") {
  const std::vector<audited_cache> caches = {example(), {"other", std::vector<kvx::attention_audit>(1)}};
  const table shown = audit_table(caches);
  REQUIRE(shown.rows.size() == 5);
  for (const auto& row : shown.rows) CHECK(row.size() == shown.columns.size());
  CHECK(shown.rows[2] == std::vector<std::string>{"paris_kv", "2", "0.900", "0.900", "0.200", "0.200", "be dense"});
  const std::string verdict = audit_verdict(caches);
  CHECK(verdict.find("paris_kv: layers that should be dense: 0, 2\n") != std::string::npos);
  CHECK(verdict.find("other: every layer may retrieve\n") != std::string::npos);
  CHECK(verdict.find("mass below 0.80 or output error above 0.15") != std::string::npos);
}
