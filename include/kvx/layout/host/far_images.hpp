#pragma once
// Pages of rows in a file, and the memory that they leave behind.

#include <kvx/core/check.hpp>
#include <kvx/layout/far_file.hpp>
#include <kvx/layout/page_runs.hpp>
#include <kvx/layout/row_view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvx {

/// Images of pages [H][P][row] in one file: layer after layer, of each the rows in the order of time by page id and, with `by_pages`, those
/// of semantic pages under their ids.
///
/// rows        of a layer whose pages are images too: heads and slots of a page follow each other, and so do pages
/// cost        pages whose ids follow each other are one call, and the system keeps what one call wrote in larger pieces of its memory,
///             which are read faster
/// errors      see throw_far_error
template <class E>
class far_images {
 public:
  far_images() = default;
  far_images(const far_place& place, std::int64_t pages, std::int64_t bytes, std::int64_t layers, bool by_pages, call_site where)
      : file_(place, pages * bytes * layers * (by_pages ? 2 : 1), where), bytes_(bytes), pages_(pages), kinds_(by_pages ? 2 : 1) {}

  const far_file& file() const { return file_; }
  std::int64_t bytes() const { return bytes_; }  ///< of one image
  std::int64_t in_time(std::int64_t layer) const { return layer * kinds_ * pages_ * bytes_; }  ///< of page 0 in the file
  std::int64_t by_page(std::int64_t layer) const { return in_time(layer) + pages_ * bytes_; }

  /// Pages that one call moves: 2 MiB, the largest piece of a file that systems keep.
  std::int64_t most_at_once() const { return std::max<std::int64_t>(1, (std::int64_t{2} << 20) / bytes_); }

  void write(const row_view<E>& rows, std::int64_t layer, std::span<const std::int32_t> ids, call_site where) {
    for_each_run(ids, most_at_once(), [&](std::span<const std::int32_t> run) {
      put(in_time(layer) + run.front() * bytes_, rows.key.at(run.front(), 0, 0), std::ssize(run), where);
    });
  }
  /// Pages [page, page + n).
  ///
  /// images      (n, H, P, row)
  void write_by_page(const E* images, std::int64_t layer, std::int64_t page, std::int64_t n, call_site where) {
    put(by_page(layer) + page * bytes_, images, n, where);
  }
  void read(const row_view<E>& rows, std::int64_t layer, std::span<const std::int32_t> ids, call_site where) const {
    for_each_run(ids, most_at_once(), [&](std::span<const std::int32_t> run) {
      const std::int64_t n = std::ssize(run) * bytes_;
      if (const int error = file_.read(in_time(layer) + run.front() * bytes_, rows.key.at(run.front(), 0, 0), n); error != 0)
        throw_far_error(error, "read", n, where);
    });
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
  void put(std::int64_t at, const E* images, std::int64_t n, call_site where) {
    if (const int error = file_.write(at, images, n * bytes_); error != 0) throw_far_error(error, "write", n * bytes_, where);
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
  std::int64_t pages_ = 0;
  std::int64_t kinds_ = 1;
};

}  // namespace kvx
