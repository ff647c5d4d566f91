// refused: a reranker ranks what sign_buckets or dci_tree proposes

#include <kvx/aliases.hpp>

using layout = kvx::paged<float, kvx::page_shape{.tokens = 16}, kvx::zones{.sink = 32, .local = 32}>;
constexpr auto columns = kvx::spec<layout, kvx::full_scan, kvx::rsq_ip<4>>::columns(layout::shape);
