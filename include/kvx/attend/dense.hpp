#pragma once
// Dense attention of a ragged batch over paged rows: what is asked, independent of who computes it.

#include <kvx/core/annotate.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstdint>

namespace kvx {

using attend_item = batch_item;

/// Which keys take part, and what is done to a score.
///
/// scale       multiplies q.k; 0 means 1 / sqrt(D)
/// soft_cap    c > 0 replaces a score s by c tanh(s / c), after scaling
/// window      w > 0: a query at position p sees only keys at p - w + 1 .. p ...
/// sink        ... and those before position `sink`
struct dense_options {
  float scale = 0;
  float soft_cap = 0;
  std::int64_t window = 0;
  std::int64_t sink = 0;
};

/// Start of the window of a query at `position`: it sees the keys at start .. position, and those before `o.sink`.
KVX_HD constexpr std::int64_t window_start(const dense_options& o, std::int64_t position) {
  return o.window > 0 && position + 1 > o.window ? position + 1 - o.window : 0;
}
static_assert(window_start({.window = 4}, 9) == 6 && window_start({.window = 4}, 3) == 0 && window_start({}, 9) == 0);

}  // namespace kvx
