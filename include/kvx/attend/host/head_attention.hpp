#pragma once
// The attention of one new token and KV head on the host while it comes together: residents first, then what is chosen, in one softmax.

#include <kvx/attend/host/rows.hpp>
#include <kvx/attend/rows.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/batch_item.hpp>
#include <kvx/layout/host/far_head.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>
#include <kvx/layout/token_zone.hpp>
#include <kvx/layout/zones.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvx {

/// Memory of one.
struct head_attention_parts {
  float* plain;           // (G, D)
  softmax_state* states;  // (G)
  float* lse;             // (G)
  float* sums;            // (G, Dv)

  head_attention_parts(scratch_parts& s, page_shape page, std::int64_t G)
      : plain(s.take<float>(G * page.key_dim)),
        states(s.take<softmax_state>(G)),
        lse(s.take<float>(G)),
        sums(s.take<float>(G * page.value_dim)) {}
};

/// One new token and KV head. Trivial to make; load, residents, take and write run in this order, on the caller's thread.
///
/// zone        which tokens are residents: those before its begin and from its end on
template <class E>
class head_attention {
 public:
  /// heads       of the group
  /// stage       of attend_rows_scratch bytes for the most rows
  /// far         null where all rows are near
  head_attention(const row_view<const E>& rows, const batch_item& item, const zones& by, std::int64_t query, std::int64_t head,
                 std::int64_t heads, row_options how, const head_attention_parts& at, std::span<std::byte> stage,
                 far_head<E>* far = nullptr)
      : zone(zone_of(item, 0, by, rows.page_tokens, query)),
        rows_(rows),
        pages_(item.pages),
        row_(item.first + query),
        head_(head),
        heads_(heads),
        how_{logit_scale(how.scale, rows.key_dim), how.soft_cap},
        at_(at),
        stage_(stage),
        far_(far) {}

  token_zone zone;

  float scale() const { return how_.scale; }
  tensor_view<const float, 2> queries() const { return tensor_view<const float, 2>(at_.plain, heads_, rows_.key_dim); }
  std::span<const float> lse() const { return {at_.lse, static_cast<std::size_t>(heads_)}; }

  /// The queries of the group.   q (N, Q, D)
  template <class T>
  void load(const tensor_view<const T, 3>& q) {
    const std::int64_t D = rows_.key_dim;
    for (std::int64_t g = 0; g < heads_; ++g) {
      for (std::int64_t d = 0; d < D; ++d) at_.plain[g * D + d] = to_float(*q.at(row_, head_ * heads_ + g, d));
    }
  }

  /// Begins with the residents; lse is theirs until more is taken.
  void residents() {
    std::fill_n(at_.states, heads_, softmax_state{});
    const token_range ranges[] = {{0, zone.begin}, {zone.end, zone.length}};
    take({ranges, {}});
    for (std::int64_t g = 0; g < heads_; ++g) at_.lse[g] = at_.states[g].lse();
  }

  void take(std::span<const std::int32_t> ids) {
    if (ids.empty()) return;
    if (far_ != nullptr) far_->bring(ids);
    take(row_set{{}, ids});
  }

  /// Writes the result.   out (N, Q, Dv), lse (N, Q) or a null view
  template <class T>
  void write(const tensor_view<T, 3>& out, const tensor_view<float, 2>& lse) const {
    tensor_view<T, 2> to(out.at(row_, head_ * heads_, 0), heads_, rows_.value_dim);
    to.strides[0] = out.strides[1];
    to.strides[1] = out.strides[2];
    finish_rows<T>(host{.threads = 1}, states(), read_only(sums()), to);
    if (lse.data == nullptr) return;
    for (std::int64_t g = 0; g < heads_; ++g) *lse.at(row_, head_ * heads_ + g) = at_.states[g].lse();
  }

  std::span<softmax_state> states() const { return {at_.states, static_cast<std::size_t>(heads_)}; }
  tensor_view<float, 2> sums() const { return tensor_view<float, 2>(at_.sums, heads_, rows_.value_dim); }

 private:
  void take(const row_set& set) {
    attend_rows(host{.threads = 1}, rows_, pages_, head_, queries(), set, how_, states(), sums(), stage_, far_);
  }

  row_view<const E> rows_;
  const std::int32_t* pages_;
  std::int64_t row_, head_, heads_;
  row_options how_;
  head_attention_parts at_;
  std::span<std::byte> stage_;
  far_head<E>* far_;
};

}  // namespace kvx
