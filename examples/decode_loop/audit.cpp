#include "audit.hpp"

#include "comparison.hpp"

namespace decode_loop {

std::vector<audited_cache> audit_layers(forward_pass& pass, const kvx::host& exec, std::span<const token_id> ids, std::size_t context,
                                        std::span<const cache_choice* const> choices, std::int64_t keep) {
  const model_shape& shape = pass.weights().shape;
  cache_request request = request_for(shape, ids.size(), pass.most_tokens(), keep);
  request.dense_layers = 0;
  const auto reference = make_reference(exec, request);
  std::vector<std::unique_ptr<any_cache>> caches;
  std::vector<any_cache*> copies;
  std::vector<audited_cache> result;
  for (const cache_choice* choice : choices) {
    copies.push_back(caches.emplace_back(choice->make(exec, request)).get());
    result.push_back({std::string(choice->name), std::vector<kvx::attention_audit>(shape.layers)});
  }
  progress prompt_bar("prompt", context);
  run_prompt(pass, *reference, ids.first(context),
             {.scored = 0, .copies = copies, .progress = [&](std::size_t done) { prompt_bar(done); }});

  std::vector<float> out(shape.query_heads * shape.head_dim), lse(shape.query_heads);  // (1, Q, D), (1, Q)
  const layer_watch audit = [&](std::size_t layer, const layer_rows& rows) {
    for (std::size_t c = 0; c < copies.size(); ++c) {
      copies[c]->append(static_cast<int>(layer), rows.k.data(), rows.v.data());
      copies[c]->attend(static_cast<int>(layer), rows.q.data(), out.data(), lse.data(), &result[c].layers[layer]);
    }
  };
  progress bar("audit", ids.size() - context);
  for (std::size_t i = context; i < ids.size(); ++i) {
    for (any_cache* copy : copies) copy->begin(1);
    forward(pass, *reference, ids.subspan(i, 1), 0, audit);
    for (any_cache* copy : copies) copy->commit();
    bar(i + 1 - context);
  }
  return result;
}

table audit_table(std::span<const audited_cache> caches) {
  table result{{"cache", "layer", "mass mean", "least", "output error mean", "worst", "should"}, {}};
  for (const audited_cache& cache : caches) {
    for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
      const kvx::attention_audit& a = cache.layers[layer];
      result.rows.push_back({cache.name, std::to_string(layer), number(a.mean_mass(), 3), number(a.least_mass, 3),
                             number(a.mean_error(), 3), number(a.worst_error, 3), should_be_dense(a) ? "be dense" : "retrieve"});
    }
  }
  return result;
}

std::string audit_verdict(std::span<const audited_cache> caches) {
  std::string text;
  for (const audited_cache& cache : caches) {
    std::string layers;
    for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
      if (should_be_dense(cache.layers[layer])) layers += (layers.empty() ? "" : ", ") + std::to_string(layer);
    }
    text += cache.name + ": " + (layers.empty() ? "every layer may retrieve" : "layers that should be dense: " + layers) + "\n";
  }
  return text + "The rule: mass below " + number(least_mass, 2) + " or output error above " + number(most_error, 2) + ", on the mean.\n";
}

}  // namespace decode_loop
