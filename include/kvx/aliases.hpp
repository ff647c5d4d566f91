#pragma once
// The compositions that people ask for by name.

#include <kvx/index/dci_tree.hpp>
#include <kvx/index/group_rule.hpp>
#include <kvx/index/sign_buckets.hpp>
#include <kvx/layout/paged.hpp>
#include <kvx/layout/placement.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/rerank/rsq_ip.hpp>
#include <kvx/spec.hpp>

namespace kvx {

/// Every row kept, every row attended to: what the other compositions are measured against.
template <element E, int KeyDim, int ValueDim = KeyDim>
using full = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}>>;

/// ParisKV with our defaults: keys relative to their page's mean, candidates by sign sums and norms of the most interested head, 4-bit
/// reranking, the softmax sum over the group. `Place` says whether rows may lie in host memory.
template <element E, int KeyDim, int ValueDim = KeyDim, placement Place = placement::resident>
using paris_kv = spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}, Place>,
                      sign_buckets<>, rsq_ip<4>>;

/// ParisKV in tiers: nothing is dropped. Candidates that are not among the kept rows take part by their codes, all other tokens by the
/// means of their pages, in one softmax; see docs/tiers.md.
template <element E, int KeyDim, int ValueDim = KeyDim, placement Place = placement::resident>
using paris_kv_tiered =
    spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}, Place>,
         sign_buckets<>, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;

/// ParisKV as published: neither centre, balance nor norms, votes of the mean query, the mean over the group.
template <element E, int KeyDim, int ValueDim = KeyDim>
struct paris_kv_faithful
    : spec<paged<E, page_shape{.tokens = 64, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 4, .local = 256}>,
           sign_buckets<key_sketch{.centre = false, .balance = 0, .norms = false}, voting>, rsq_ip<4>> {
  constexpr paris_kv_faithful() { this->reranker.rule.by = group_rule::kind::mean; }
};

/// IceCache with our defaults: blocks of 256 tokens are bisected in the metric of the queries to pages of 16, the pages whose mean and
/// spread promise most are looked at token by token, and those with the best tokens are attended to: .keep = 192 are 12 of them. `Place`
/// says whether rows may lie far.
template <element E, int KeyDim, int ValueDim = KeyDim, placement Place = placement::resident>
using ice_cache = spec<paged<E, page_shape{.tokens = 16, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 32, .local = 32}, Place>,
                       dci_tree<dci_shape{.by = dci_shape::metric::diagonal}>>;

/// The same pages, of which the tokens are attended to that 4-bit codes rank highest.
template <element E, int KeyDim, int ValueDim = KeyDim, placement Place = placement::resident>
using ice_cache_tokens = spec<typename ice_cache<E, KeyDim, ValueDim, Place>::layout_type,
                              typename ice_cache<E, KeyDim, ValueDim, Place>::index_type, rsq_ip<4>>;

/// The same in tiers: nothing is dropped. Of the pages found, members that are not among the `keep` rows take part by their codes, all
/// other pages by their means, in one softmax; see docs/tiers.md.
template <element E, int KeyDim, int ValueDim = KeyDim, placement Place = placement::resident>
using ice_cache_tiered = spec<typename ice_cache<E, KeyDim, ValueDim, Place>::layout_type,
                              typename ice_cache<E, KeyDim, ValueDim, Place>::index_type, rsq_ip<4, tiers{.value_bits = 4, .tail = true}>>;

/// IceCache as published, but for growth by blocks: cells of the tree cut along one random direction, one token of a hundred promoted,
/// pages of the group's heads interleaved by rank.
template <element E, int KeyDim, int ValueDim = KeyDim>
struct ice_cache_faithful
    : spec<paged<E, page_shape{.tokens = 16, .key_dim = KeyDim, .value_dim = ValueDim}, zones{.sink = 32, .local = 32}>,
           dci_tree<dci_shape{.pack = dci_shape::packing::projection,
                              .by = dci_shape::metric::keys,
                              .rank = dci_shape::ranking::best_member,
                              .first_promotion = 10}>> {
  constexpr ice_cache_faithful() { this->index.interleave = true; }
};

}  // namespace kvx
