#pragma once
// Pages of rows in a file, and the memory that they leave behind.

#include <kvx/core/check.hpp>
#include <kvx/layout/far_file.hpp>
#include <kvx/layout/row_view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvx {

/// Images of pages [H][P][row] in one file: record after record by page id, in each the layers, of each layer the rows in the order of time
/// and, with `by_pages`, those of the semantic page under its id.
///
/// rows        of a layer whose pages are images too: heads and slots of a page follow each other
/// errors      see throw_far_error
template <class E>
class far_images {
 public:
  far_images() = default;
  far_images(const far_place& place, std::int64_t pages, std::int64_t bytes, std::int64_t layers, bool by_pages, call_site where)
      : file_(place, pages * bytes * layers * (by_pages ? 2 : 1), where), bytes_(bytes), layers_(layers), kinds_(by_pages ? 2 : 1) {}

  const far_file& file() const { return file_; }
  std::int64_t bytes() const { return bytes_; }  ///< of one image
  std::int64_t record() const { return layers_ * kinds_ * bytes_; }
  std::int64_t in_time(std::int64_t layer) const { return layer * kinds_ * bytes_; }  ///< in a record
  std::int64_t by_page(std::int64_t layer) const { return in_time(layer) + bytes_; }

  void write(const row_view<E>& rows, std::int64_t layer, std::int64_t page, call_site where) const {
    put(page * record() + in_time(layer), rows.key.at(page, 0, 0), where);
  }
  void write_by_page(const E* image, std::int64_t layer, std::int64_t page, call_site where) const {
    put(page * record() + by_page(layer), image, where);
  }
  void read(const row_view<E>& rows, std::int64_t layer, std::int64_t page, call_site where) const {
    if (const int error = file_.read(page * record() + in_time(layer), rows.key.at(page, 0, 0), bytes_); error != 0)
      throw_far_error(error, "read", bytes_, where);
  }

  /// The memory of a page's rows goes back to the system: what lies there is undefined until the page is read or written.
  void give_back([[maybe_unused]] const row_view<E>& rows, [[maybe_unused]] std::int64_t page) const {
#if defined(__linux__)
    whole_pages(rows.key.at(page, 0, 0), bytes_, [](void* first, std::size_t n) { madvise(first, n, MADV_DONTNEED); });
#endif
  }

  /// Small pages of the system for [0, pages): of a large one the memory comes back only as a whole.
  void prefer_small_pages([[maybe_unused]] const row_view<E>& rows, [[maybe_unused]] std::int64_t pages) const {
#if defined(__linux__)
    whole_pages(rows.key.at(0, 0, 0), pages * bytes_, [](void* first, std::size_t n) { madvise(first, n, MADV_NOHUGEPAGE); });
#endif
  }

 private:
  void put(std::int64_t at, const E* image, call_site where) const {
    if (const int error = file_.write(at, image, bytes_); error != 0) throw_far_error(error, "write", bytes_, where);
  }

  /// Pages of the system that lie wholly in these bytes.
  template <class F>
  static void whole_pages(void* first, std::int64_t bytes, const F& f) {
    static const auto unit = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    auto space = static_cast<std::size_t>(bytes);
    if (std::align(unit, unit, first, space) != nullptr) f(first, space / unit * unit);
  }

  far_file file_;
  std::int64_t bytes_ = 0;
  std::int64_t layers_ = 0;
  std::int64_t kinds_ = 1;
};

}  // namespace kvx
