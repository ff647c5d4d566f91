#pragma once
// Where the rows of a device cache's sequence lie, as kernels that store and restore them are told.

#include <kvx/backend/cuda/memory.cuh>
#include <kvx/backend/cuda/packed_upload.cuh>
#include <kvx/backend/device.cuh>
#include <kvx/cache_parts.hpp>
#include <kvx/codec/calibrated.hpp>
#include <kvx/codec/cuda/span_rows.cuh>
#include <kvx/layout/page_table.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx {

/// Page tables of one sequence and addresses of some layers' rows, in device memory. Moves.
///
/// cost        one copy of 4 bytes a page and group and some hundred a layer, waited for
template <class Spec>
class rows_on_device {
 public:
  using layout = typename Spec::layout_type;
  using E = typename layout::element_type;

  rows_on_device() = default;

  /// layers      whose rows are taken together, in this order
  /// runner      the cache's, which knows which rows lie far
  template <class Runner>
  rows_on_device(const device& exec, const cache_parts<Spec>& of, const Runner& runner, std::span<const page_table> tables,
                 std::span<const std::int32_t> layers, call_site where) {
    const auto& first = of.layer(layers.front());
    std::vector<std::int32_t> pages = tables[static_cast<std::size_t>(first.group)].pages;
    std::vector<row_array<E>> arrays;  // K of all layers, V of them, the same of far rows
    for (const row_part part : {row_part::key, row_part::value}) {
      for (const std::int32_t l : layers) arrays.push_back(part == row_part::key ? of.layer(l).rows.key : of.layer(l).rows.value);
    }
    if constexpr (Runner::spills) {
      if (first.may_be_far()) {
        for (std::int32_t& page : pages) page = page < 0 ? page : runner.placed(first).frames[static_cast<std::size_t>(page)];
        for (const row_part part : {row_part::key, row_part::value}) {
          for (const std::int32_t l : layers) {
            const auto far = runner.placed(of.layer(l)).far;
            arrays.push_back(part == row_part::key ? far.key : far.value);
            near_pages_ = far.near_pages;
          }
        }
      }
    }
    layers_ = std::ssize(layers);
    const std::vector<row_array<const E>> read(arrays.begin(), arrays.end());
    packed_upload all;
    const auto table = all.add(pages);
    const auto to_write = all.add(arrays);
    const auto to_read = all.add(read);
    memory_ = all.place(exec);
    pages_ = all.at(table);
    arrays_ = all.at(to_write);
    read_arrays_ = all.at(to_read);
    all.bring(exec, where);
  }

  /// Rows of `heads` heads of each layer from a position on; T is E or const E.
  template <class T>
  span_rows<T> of(row_part part, std::int64_t position, std::int32_t first_head, std::int32_t heads) const {
    const bool key = part == row_part::key;
    const row_array<T>* near = nullptr;
    if constexpr (std::is_const_v<T>) {
      near = read_arrays_;
    } else {
      near = arrays_;
    }
    near += key ? 0 : layers_;
    return {near,       first_head,           heads,    key ? layout::shape.key_dim : layout::shape.value_dim,
            pages_,     layout::shape.tokens, position, near_pages_ > 0 ? near + 2 * layers_ : nullptr,
            near_pages_};
  }

 private:
  device_block memory_;
  const std::int32_t* pages_ = nullptr;
  const row_array<E>* arrays_ = nullptr;
  const row_array<const E>* read_arrays_ = nullptr;
  std::int64_t layers_ = 0;
  std::int64_t near_pages_ = 0;  // 0: all rows are near
};

}  // namespace kvx
