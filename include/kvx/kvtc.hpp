#pragma once
// Caches whose sequences are stored by a calibrated transform codec, by name, and what saving and restoring them takes.

#include <kvx/aliases.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/chain.hpp>
#include <kvx/core/element.hpp>
#include <kvx/index/full_scan.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/paged.hpp>
#include <kvx/rerank/pass_through.hpp>
#include <kvx/spec.hpp>
#include <kvx/storing.hpp>

namespace kvx {

/// A composition whose stored rows another codec codes; index and reranker begin with the values that they have in it.
template <class Spec, class Codec>
struct stored_by : spec<typename Spec::layout_type, typename Spec::index_type, typename Spec::reranker_type, Codec> {
  constexpr stored_by() {
    const Spec like{};
    this->index = like.index;
    this->reranker = like.reranker;
  }
};

/// Every row kept and attended to; stored entropy-first, with sensitivity weights and predicted from tokens where the calibration has them.
/// Ours.
template <element E, int KeyDim, int ValueDim = KeyDim>
using kvtc = stored_by<full<E, KeyDim, ValueDim>, calibrated<kvtc_entropy>>;

/// The same, stored as published: a bit plan by dynamic programming, then an entropy coder: rans, or deflate (codec/deflate.hpp).
template <element E, int KeyDim, int ValueDim = KeyDim, class Entropy = rans>
using kvtc_faithful_cache = stored_by<full<E, KeyDim, ValueDim>, calibrated<kvtc_faithful<Entropy>>>;

}  // namespace kvx
