#pragma once
// What every reranker is asked: the logits of some tokens of one sequence and KV head, for a group of queries.

#include <kvx/core/annotate.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/sketch/key_sketch.hpp>

#include <cstdint>

namespace kvx {

template <class E>
class far_head;

/// All that is kept of one KV head of one sequence in one layer. Trivially copyable.
///
/// rows        K and V of the layer; read by `exact` and by attention alone
/// columns     of the key sketch, read by `rsq_ip` alone; blocks of pages that hold no candidate are not read
/// pages       logical page j of the sequence is physical page pages[j]
/// far         host: where rows lie some of which are far; null where all are near
template <class E>
struct head_view {
  row_view<const E> rows;
  key_columns columns;
  const std::int32_t* pages = nullptr;
  std::int64_t head = 0;
  far_head<E>* far = nullptr;
};

/// The queries of a group.
///
/// plain       q (G, D), as the rows want them
/// rotated     q~ (G, D) = rotate(q / balance), as the codes want them; may be null where no code is read
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// page_dots   (pages from first_page on, G) what a scan for these queries left of the page means (bucket_query); null: computed anew
struct group_queries {
  tensor_view<const float, 2> plain;
  tensor_view<const float, 2> rotated;
  float scale = 0;
  const float* page_dots = nullptr;
  std::int64_t first_page = 0;
};

/// Most heads of a group.
inline constexpr int most_rerank_heads = 128;

}  // namespace kvx
