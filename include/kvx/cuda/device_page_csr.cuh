#pragma once
// Page tables of some sequences in device memory, for kernels of the user's own.

#include <kvx/backend/cuda/upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/core/scratch_parts.hpp>
#include <kvx/layout/page_csr.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace kvx {

/// A page_csr on the device. Moves.
///
/// what        the table is there for work that is enqueued on the stream of `exec` later; the host's copy may go at once
/// cost        one allocation and one upload, which the call waits for: not for every layer of a decode step
class device_page_csr {
 public:
  device_page_csr(const device& exec, const page_csr& csr) : sequences_(csr.sequences()) {
    require_uncaptured(exec);
    const auto place = [&](scratch_parts memory) {
      indptr_ = memory.take<std::int32_t>(std::ssize(csr.indptr));
      indices_ = memory.take<std::int32_t>(std::ssize(csr.indices));
      last_page_len_ = memory.take<std::int32_t>(std::ssize(csr.last_page_len));
      return memory.used;
    };
    memory_ = allocate(exec, place({}));
    place({memory_.data()});
    upload_ring uploads;
    const auto piece = [](std::int32_t* to, const std::vector<std::int32_t>& from) {
      return upload_piece{to, from.data(), std::ssize(from) * 4};
    };
    const upload_piece pieces[] = {piece(indptr_, csr.indptr), piece(indices_, csr.indices), piece(last_page_len_, csr.last_page_len)};
    uploads.enqueue(exec, pieces);
  }

  /// Rows of a layer of the cache that the table came from, and the table: what a kernel takes.
  template <class E>
  paged_view<std::remove_const_t<E>> view(const row_view<E>& rows) const {
    return {rows, indptr_, indices_, last_page_len_, sequences_};
  }

 private:
  device_block memory_;
  std::int32_t* indptr_ = nullptr;
  std::int32_t* indices_ = nullptr;
  std::int32_t* last_page_len_ = nullptr;
  std::int64_t sequences_ = 0;
};

}  // namespace kvx
