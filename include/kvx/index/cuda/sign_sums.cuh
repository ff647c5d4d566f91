#pragma once
// Preparation of a search by sign sums on a device: a block for each unit.

#include <kvx/backend/cuda/dynamic_shared.cuh>
#include <kvx/backend/cuda/launch.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/backend/simd/scan_table.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/math.hpp>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/index/cuda/bucket_search.cuh>
#include <kvx/index/cuda/sign_sum_block.cuh>
#include <kvx/index/cuda/unit_zone.cuh>
#include <kvx/index/sign_sums.hpp>
#include <kvx/layout/device_batch.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvx {

/// Prepares the search of one unit; a whole block calls. Clears the unit's histogram and ticket too: a scan may follow.
///
/// what        the record of host's prepare_sign_sums: tables of every head's query, or of their mean; then one scale for all heads, from
///             at most 2,048 tokens of the zone. Nothing for an empty zone
/// shapes      in: of this unit, in any memory that the block sees; kappa: sign_worth(D); shared: prepare_sign_sums_shared bytes
/// template    Words, Wide as for_sign_sum_shape says
/// exactness   the host's bits, for any number of threads: sums in double in a fixed order, products of floats exact
/// errors      a head whose query is not finite is left out; without any, all scores are equal
/// cost        reads the sampled columns twice, 43 KB at D 128; a dozen barriers
template <int Threads, int Words, bool Wide>
__device__ __forceinline__ void prepare_sign_sums(const bucket_search& s, const scanned_columns& columns, const unit_zone& zone,
                                                  std::int64_t unit, const device_queries& in, double kappa, std::byte* shared) {
  scratch_parts parts{shared};
  sign_sum_block<Threads, Words, Wide>(s, columns, zone, unit, in, kappa, parts).run();
}

/// Calls f(words, wide), two integral constants, with what the tables of a search need.
template <class F>
void for_sign_sum_shape(const bucket_search_shape& s, const F& f) {
  const int words = sign_sum_record_of(s.sketch, s.by, s.page.key_dim, s.group).words;
  const bool wide = plane_bytes(s.page.key_dim) > simd::narrow_planes;
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  if (wide) {
    words == 1 ? f(one, std::true_type{}) : f(two, std::true_type{});
  } else if (words <= 2) {
    words == 1 ? f(one, std::false_type{}) : f(two, std::false_type{});
  } else {
    f(std::integral_constant<int, 4>{}, std::false_type{});
  }
}

template <int Threads, int Words, bool Wide>
__global__ void __launch_bounds__(Threads, 1)
    prepare_sign_sums_kernel(const bucket_search s, const scanned_columns columns, const device_batch batch, const device_queries in,
                             const double kappa) {
  __shared__ unit_zone zone;
  const std::int64_t unit = blockIdx.x;
  share_zone(s, batch, unit, zone);
  prepare_sign_sums<Threads, Words, Wide>(s, columns, zone, unit, in.of_unit(unit, s.group, s.page.key_dim), kappa,
                                          dynamic_shared<std::byte>());
}

/// Throws unless a search may run on a device.
inline void require_device_search(const bucket_search_shape& s, call_site where) {
  require(is_valid(s.page), "bucket_search: no valid page shape", where);
  require(can_score(s.sketch, s.by), "bucket_search: votes need a subspace of 4 or 8", where);
  require_range("bucket_search: group", s.group, 1, most_device_group, where);
  require_range("bucket_search: longest", s.longest, 0, std::int64_t{1} << 31, where);
}

/// Prepares the searches of all units by sign sums: a launch of its own, where a step does not do it along with others.
///
/// shapes      batch: under the page ids of the columns
/// errors      usage_error for shapes that do not fit
/// cost        one block a unit
inline void prepare_sign_sums(const device& exec, const bucket_search& s, const scanned_columns& columns, const device_batch& batch,
                              const device_queries& in, call_site where = call_site::here()) {
  require_device_search(s, where);
  require(in.scale > 0 && in.scale < infinity, "prepare_sign_sums: scale must be positive and finite", where);
  constexpr int threads = 256;
  for_sign_sum_shape(s, [&](auto words, auto wide) {
    const launch_shape shape{dim3(static_cast<unsigned>(s.units())), threads, static_cast<std::size_t>(prepare_sign_sums_shared(s))};
    launch(exec, shape, prepare_sign_sums_kernel<threads, decltype(words)::value, decltype(wide)::value>, s, columns, batch, in,
           sign_worth(s.page.key_dim));
  });
}

}  // namespace kvx
