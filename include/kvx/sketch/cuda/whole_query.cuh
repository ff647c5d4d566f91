#pragma once
// The scale of a query in whole numbers on the device, by one warp.

#include <kvx/backend/cuda/collectives.cuh>
#include <kvx/core/math.hpp>
#include <kvx/sketch/whole_query.hpp>

#include <cuda_runtime.h>

namespace kvx {

/// scale_of, for a query whose components the lanes of a warp hold.
///
/// largest     of the sizes of a lane's components; finite: whether all of them are
__device__ __forceinline__ query_scale warp_scale_of(float largest, bool finite) {
  largest = warp_max(largest);
  if (__all_sync(all_lanes, finite ? 1 : 0) == 0) largest = infinity;
  return scale_of(&largest, 1, 1);
}

}  // namespace kvx
