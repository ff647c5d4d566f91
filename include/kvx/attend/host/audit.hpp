#pragma once
// Compares a method's attention with the dense attention of the same queries, on the host.

#include <kvx/attend/audit.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/tensor_view.hpp>

#include <cmath>
#include <cstdint>

namespace kvx {

/// Adds the pairs of one call to an audit.
///
/// shapes      out, dense_out (N, Q, Dv); lse, dense_lse (N, Q)
/// units       lse in nats
/// cost        reads both outputs once: nothing beside the dense attention before it
/// exactness   double, pairs and components in ascending order. A 16-bit output counts with its rounding (bf16: .002)
/// errors      usage_error for shapes that do not fit; see `unjudged`
template <element T>
void audit_attention(const host&, tensor_view<const T, 3> out, tensor_view<const float, 2> lse, tensor_view<const T, 3> dense_out,
                     tensor_view<const float, 2> dense_lse, attention_audit& audit, call_site where = call_site::here()) {
  const std::int64_t N = dense_out.extents[0], Q = dense_out.extents[1], Dv = dense_out.extents[2];
  require_shape("audit_attention: dense_out", dense_out, {N, Q, Dv}, where);
  require_shape("audit_attention: out", out, {N, Q, Dv}, where);
  require_shape("audit_attention: lse", lse, {N, Q}, where);
  require_shape("audit_attention: dense_lse", dense_lse, {N, Q}, where);
  audit.tokens += N;
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < Q; ++h) {
      double difference = 0, norm = 0;                                  // squared
      for (std::int64_t d = 0; d < Dv; ++d) {
        const double expected = static_cast<double>(to_float(*dense_out.at(n, h, d)));
        const double off = static_cast<double>(to_float(*out.at(n, h, d))) - expected;
        difference += off * off;
        norm += expected * expected;
      }
      const double error = difference == 0 && norm == 0 ? 0 : std::sqrt(difference / norm);
      const double mass = std::exp(static_cast<double>(*lse.at(n, h)) - static_cast<double>(*dense_lse.at(n, h)));
      if (std::isfinite(error) && std::isfinite(mass)) {
        audit.add(mass, error);
      } else {
        ++audit.unjudged;
      }
    }
  }
}

}  // namespace kvx
