#pragma once
// Chosen tokens of every unit of a batch, as one launch leaves them and the next reads them.

#include <kvx/core/annotate.hpp>

#include <cstdint>

namespace kvx {

/// Token ids in device memory; trivially copyable. A unit is a new token of the batch and a KV head: unit = token * heads + head.
///
/// shapes      ids (units, pitch), those of a unit first in its row; counts (units), or -1 for a unit that takes no part
/// most        no count is larger: grids and scratch are made for it
struct row_ids {
  const std::int32_t* ids = nullptr;
  const std::int32_t* counts = nullptr;
  std::int64_t pitch = 0;
  std::int64_t most = 0;

  KVX_HD constexpr const std::int32_t* of(std::int64_t unit) const { return ids + unit * pitch; }
};

}  // namespace kvx
