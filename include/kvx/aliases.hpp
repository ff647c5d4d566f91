#pragma once
// The compositions that people ask for by name.

#include <kvx/index/group_rule.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/layout/paged.hpp>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/spec.hpp>

namespace kvx {

/// Every row kept, every row attended to: what the other compositions are measured against.
template <element E, int KeyDim, int ValueDim = KeyDim>
using full = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}>>;

/// ParisKV with our defaults: keys relative to their page's mean, candidates by sign sums and norms of the most interested head, 4-bit
/// reranking, the softmax sum over the group.
template <element E, int KeyDim, int ValueDim = KeyDim>
using paris_kv = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}>,
                      sign_buckets<>, rsq_ip<4>>;

/// ParisKV in tiers: nothing is dropped. Candidates that are not among the kept rows take part by their codes, all other tokens by the
/// means of their pages, in one softmax; see docs/tiers.md.
template <element E, int KeyDim, int ValueDim = KeyDim>
using paris_kv_tiered = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}>,
                             sign_buckets<>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;

/// ParisKV as published: neither centre, balance nor norms, votes of the mean query, the mean over the group.
template <element E, int KeyDim, int ValueDim = KeyDim>
struct paris_kv_faithful
    : spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}>,
           sign_buckets<key_sketch{.centre = false, .balance = 0, .norms = false}, voting>, rsq_ip<4>> {
  constexpr paris_kv_faithful() { this->reranker.rule.by = group_rule::kind::mean; }
};

}  // namespace kvx
