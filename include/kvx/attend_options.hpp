#pragma once
// How one call of attend computes.

#include <kvx/attend/audit.hpp>
#include <kvx/attend/pages.hpp>
#include <kvx/attend/retrieve.hpp>
#include <kvx/attend/tiers.hpp>
#include <kvx/core/check.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/sign_buckets.hpp>

#include <cstdint>

namespace kvx {

/// How `attend` computes.
///
/// keep        retrieved tokens that take part, per KV head, where the composition retrieves
/// breadth     how many candidates the index proposes for them
/// pages       how an index of semantic pages is searched
/// path        `by_length`: prompts (more than 32 new tokens of a sequence) and short sequences attend densely; or say which
/// scale       multiplies q.k; 0 means 1 / sqrt(D). Not negative in a layer that finds keys by their signs
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
/// lse         optional, (N, Q): log of the sum of exp(score), in nats; -inf where nothing was seen
/// budget      whether `keep` counts rows of a KV head, of a layer's heads together, or is the most that an estimate may ask for
/// others      which tiers take part beside the rows that are kept, where the composition has tiers
/// audit       optional: a retrieving layer attends densely too, and what was missed is added here. It allocates, and costs a dense step
struct attend_options {
  enum class route : std::uint8_t { by_length, dense, retrieve };

  std::int64_t keep = 256;
  search_breadth breadth = {};
  page_breadth pages = {};
  route path = route::by_length;
  float scale = 0;
  float soft_cap = 0;
  retrieve_budget budget = {};
  tier_options others = {};
  float* lse = nullptr;
  attention_audit* audit = nullptr;
};

/// Refuses a budget that is not one page, where whole pages are attended to.
inline void require_a_page(const attend_options& options, std::int64_t page_tokens, call_site where) {
  require(options.keep == 0 || options.keep >= page_tokens || options.pages.pages > 0, "attend: keep is less than the tokens of a page",
          where);
}

/// Refuses a scale that turns the order of keys around, where they are found by their signs.
inline void require_scale(const attend_options& options, call_site where) {
  require(options.scale >= 0, "attend: scale must not be negative in a layer that finds keys by their signs", where);
}

/// Refuses a budget by mass where scores are none, or are no shares of the attention.
inline void require_mass(const attend_options& options, bool ranks, group_rule rule, call_site where) {
  if (options.budget.of != retrieve_budget::kind::mass) return;
  require(ranks && rule.by == group_rule::kind::softmax_sum, "attend: a budget by mass needs a reranker by the softmax sum", where);
  require(options.budget.mass >= 0 && options.budget.mass <= 1, "attend: budget.mass is 0 to 1", where);
}

/// Refuses budgets that semantic pages have not.
inline void require_head_budget(const attend_options& options, call_site where) {
  require(options.budget.of == retrieve_budget::kind::head, "attend: budget.of must be head where pages are found", where);
}

}  // namespace kvx
