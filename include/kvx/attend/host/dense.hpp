#pragma once
// Dense attention of a ragged batch on the host: decoding and prompts.

#include <kvx/attend/dense.hpp>
#include <kvx/attend/host/dense_few.hpp>
#include <kvx/attend/host/dense_panels.hpp>
#include <kvx/attend/host/dense_plan.hpp>
#include <kvx/attend/host/dense_unit.hpp>
#include <kvx/attend/softmax_state.hpp>
#include <kvx/backend/host.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/element.hpp>
#include <kvx/core/logit_scale.hpp>
#include <kvx/core/tensor_view.hpp>
#include <kvx/layout/page_shape.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvx {

/// Bytes of scratch that attend_dense needs for this batch, whatever its options. A pure function of the arguments.
template <class E>
std::int64_t attend_dense_scratch(const host& exec, const row_view<E>& rows, std::span<const attend_item> batch, int query_heads) {
  host_dense::dense_sizes sizes;
  for (const attend_item& item : batch) {
    const host_dense::dense_cut cut = host_dense::cut_of(item, rows.heads, query_heads / std::max(rows.heads, 1));
    sizes.add(cut, cut.pieces, rows.heads, host_dense::float_pitch(rows.value_dim));
  }
  return host_dense::scratch_bytes(exec, sizes, static_cast<std::int64_t>(batch.size()), rows.key_dim, rows.value_dim);
}

namespace host_dense {

/// attend_dense by the kernels of a given instruction set.
template <element E, element T>
void attend(const simd::kernel_table& kernels, const host& exec, const row_view<const E>& rows, std::span<const attend_item> batch,
            tensor_view<const T, 3> q, tensor_view<T, 3> out, tensor_view<float, 2> lse, const dense_options& options,
            std::span<std::byte> scratch, call_site where) {
  require_range("attend_dense: KV heads", rows.heads, 1, 65536, where);
  require_range("attend_dense: key_dim", rows.key_dim, 1, 576, where);
  require_range("attend_dense: value_dim", rows.value_dim, 1, 576, where);
  require(rows.page_tokens > 0 && std::has_single_bit(static_cast<unsigned>(rows.page_tokens)),
          "attend_dense: page_tokens must be a power of two", where);
  require(q.extents[1] % rows.heads == 0, "attend_dense: the query heads must be a multiple of the KV heads", where);
  require(q.extents[2] == rows.key_dim, "attend_dense: q must have key_dim components", where);
  require(out.extents[0] == q.extents[0] && out.extents[1] == q.extents[1] && out.extents[2] == rows.value_dim,
          "attend_dense: out must be (N, Q, value_dim)", where);
  require(lse.data == nullptr || (lse.extents[0] == q.extents[0] && lse.extents[1] == q.extents[1]), "attend_dense: lse must be (N, Q)",
          where);

  dense_call<E, T> call{rows, q, out, lse, options, &kernels};
  call.group = q.extents[1] / rows.heads;
  call.page_shift = page_shift_of(rows.page_tokens);
  call.scale = logit_scale(options.scale, rows.key_dim);

  const auto items = static_cast<std::int64_t>(batch.size());
  const std::int64_t heads = rows.heads, pitch = float_pitch(rows.value_dim);
  dense_sizes sizes;
  const auto job_of = [&](const attend_item& item) {
    dense_job job{.item = item, .cut = cut_of(item, heads, call.group)};
    skip_masked_pieces(job, options);
    job.first_unit = sizes.units;
    sizes.add(job.cut, job.pieces, heads, pitch);
    return job;
  };
  for (const attend_item& item : batch) {
    require(item.length >= 0 && item.queries >= 0 && item.first >= 0 && item.first + item.queries <= q.extents[0],
            "attend_dense: an item's queries lie outside of q", where);
    job_of(item);
  }
  require(static_cast<std::int64_t>(scratch.size()) >= scratch_bytes(exec, sizes, items, rows.key_dim, rows.value_dim),
          "attend_dense: scratch is smaller than attend_dense_scratch", where);
  if (sizes.units == 0) return;

  void* start = scratch.data();
  std::size_t space = scratch.size();
  arena arena{static_cast<std::byte*>(std::align(64, 1, start, space))};
  auto* const jobs = arena.take<dense_job>(items);
  auto* open = arena.take<std::atomic<int>>(sizes.open);
  auto* states = arena.take<softmax_state>(sizes.states);
  auto* sums = arena.take<float>(sizes.sums);
  const std::int64_t slot = slot_floats(sizes, rows.key_dim, rows.value_dim);
  const std::int64_t units = sizes.units, workers = workers_of(exec, units);
  auto* const slots = arena.take<float>(workers * slot);
  sizes = {};
  for (std::int64_t i = 0; i < items; ++i) {
    dense_job job = job_of(batch[static_cast<std::size_t>(i)]);
    job.open = open;
    open += heads * job.cut.tiles;
    for (auto* counter = job.open; counter != open; ++counter) std::construct_at(counter, static_cast<int>(job.pieces));
    if (job.pieces > 1) {
      job.states = states;
      job.sums = sums;
      states += heads * job.cut.rows * job.pieces;
      sums += heads * job.cut.rows * job.pieces * pitch;
    }
    std::construct_at(jobs + i, job);
  }

  std::atomic<std::int64_t> claimed{0};
  for_each_task(exec, workers, [&](std::int64_t worker) {
    for (std::int64_t i = claimed.fetch_add(1); i < units; i = claimed.fetch_add(1)) {
      const dense_job& job =
          *(std::upper_bound(jobs, jobs + items, i, [](std::int64_t n, const dense_job& j) { return n < j.first_unit; }) - 1);
      const dense_unit u = unit_of(job, i - job.first_unit, heads);
      if (job.cut.panels) {
        attend_panels(call, job, u, slots + worker * slot);
      } else {
        attend_few(call, job, u, slots + worker * slot);
      }
      if (job.pieces > 1 && job.open[u.head * job.cut.tiles + u.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        merge_tile(call, job, u);
      }
    }
  });
}

}  // namespace host_dense

/// Softmax attention of the last tokens of each sequence over its rows.
///
/// what        out = sum_t softmax(scale q.k_t) v_t over the keys that options and causality leave visible
/// shapes      q (N, Q, D), out (N, Q, Dv), lse (N, Q) or a null view; Q a multiple of H, query head i reads KV head i / (Q / H);
///             scratch: attend_dense_scratch bytes, any alignment
/// units       lse in nats
/// cost        bound by reading K and V once for up to 23 query rows a KV head, by 2 (D + Dv) operations a visible pair beyond
/// exactness   float throughout, exp within 2 units in the last place; the same bits for any number of threads and any batch around
///             an item; instruction sets differ by rounding
/// errors      usage_error for shapes that do not fit; no visible key: out 0, lse -inf; a NaN score gives NaN; what is not visible
///             is never touched by arithmetic, so it may hold NaN
/// source      Dao et al. 2022; FlashDecoding's split over keys
template <element E, element T>
void attend_dense(const host& exec, const row_view<const E>& rows, std::span<const attend_item> batch, tensor_view<const T, 3> q,
                  tensor_view<T, 3> out, tensor_view<float, 2> lse, const dense_options& options, std::span<std::byte> scratch,
                  call_site where = call_site::here()) {
  host_dense::attend(simd::kernels(), exec, rows, batch, q, out, lse, options, scratch, where);
}

}  // namespace kvx
