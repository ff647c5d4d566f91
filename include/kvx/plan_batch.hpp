#pragma once
// What a step's rows are in every group of layers, and what it learns.

#include <kvx/cache_parts.hpp>
#include <kvx/core/check.hpp>
#include <kvx/layout/external.hpp>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/sequence_book.hpp>
#include <kvx/step.hpp>

#include <cstddef>
#include <span>

namespace kvx {

/// Fills the plan of a batch whose rows are reserved.
///
/// errors      usage_error: external rows that are not bound, or pages that the new tokens see and the caller's table lacks
template <class Backend, class Spec>
void plan_batch(const Backend& exec, cache_parts<Spec>& of, std::span<const advance> batch, step_plan& plan, call_site where) {
  using layout = typename Spec::layout_type;
  const std::span<const reservation::part> entries = plan.reserved.parts;
  plan.items.resize(of.plan.groups.size());
  for (std::size_t g = 0; g < plan.items.size(); ++g) {
    for (const reservation::part& p : entries) {
      const page_table& table = of.book->slots()[p.slot].tables[g];
      plan.items[g].push_back({table.pages.data(), p.length + p.tokens, p.tokens, p.first});
    }
  }
  if constexpr (!layout::owns_rows) {
    for (const auto& layer : of.layers) require(layer.bound, "begin: bind the rows of every layer first", where);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      plan.external.push_back(external_item(plan.items[0][i], batch[i], layout::shape.tokens, where));
      for (const layer_group& group : of.plan.groups) check_seen_pages(group.rules, plan.external.back(), where);
    }
  }
  if (of.balances.on()) {
    for (const reservation::part& p : entries) {
      plan.learning.push_back(of.balances.begin(exec, p));
      plan.balances.push_back(of.balances.diagonals(p.slot));
    }
  }
}

}  // namespace kvx
