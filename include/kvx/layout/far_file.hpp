#pragma once
// The file that far rows of a host's cache lie in: no name in its folder, so it goes with the cache.

#include <kvx/backend/file_handle.hpp>
#include <kvx/core/check.hpp>
#include <kvx/layout/far_place.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

namespace kvx {

/// Ends a mapping of so many bytes.
struct unmapping {
  std::size_t bytes = 0;
  void operator()(std::byte* start) const { ::munmap(start, bytes); }
};

/// The file. Rows are read and written by calls unless a mapping is asked for: where the file has become shorter, or its disk fails, a
/// mapping ends the process, and a call says so.
///
/// threads     read, read_now and expect by any number at once
///             write: one at a time
/// returns     0, or what errno says; ENODATA where the file ends before the bytes do. A file that was shortened takes no more: what is
///             written behind a gap would let its lost bytes be read as zeros
class far_file {
 public:
  far_file() = default;

  /// bytes       most that it will hold; disk is taken as they are written
  /// errors      usage_error where the folder takes no file of so many bytes
  far_file(const far_place& place, std::int64_t bytes, call_site where) : calls_(place.calls) {
    const char* const usual = std::getenv("TMPDIR");
    const std::string folder = !place.folder.empty() ? place.folder : usual != nullptr ? usual : "/tmp";
    std::string name = folder + "/kvx-far-XXXXXX";
    file_ = file_handle(::mkostemp(name.data(), O_CLOEXEC));
    if (!file_.ok()) throw usage_error(joined({"geometry.far.folder: no file can be made in ", folder}), where);
    ::unlink(name.c_str());
    if (!place.mapped) return;
    void* const start = may_grow_to(static_cast<std::uint64_t>(bytes)) && ::ftruncate(file_.get(), static_cast<off_t>(bytes)) == 0
                            ? ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, file_.get(), 0)
                            : MAP_FAILED;
    if (start == MAP_FAILED) throw usage_error(joined({"geometry.far.mapped: no file can be mapped in ", folder}), where);
    map_ = {static_cast<std::byte*>(start), unmapping{static_cast<std::size_t>(bytes)}};
  }

  int write(std::int64_t at, const void* bytes, std::int64_t count) {
    const std::int64_t end = at + count;
    struct stat about = {};
    if (::fstat(file_.get(), &about) != 0) return errno;
    if (about.st_size < written_) return ENODATA;
    if (!may_grow_to(static_cast<std::uint64_t>(end))) return EFBIG;
    const auto* from = static_cast<const std::byte*>(bytes);
    while (count > 0) {
      const ssize_t n = calls_.write(file_.get(), from, static_cast<std::size_t>(count), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return n < 0 ? errno : ENOSPC;
      from += n, at += n, count -= n;
    }
    written_ = std::max(written_, end);
    return 0;
  }

  int read(std::int64_t at, void* bytes, std::int64_t count) const {
    auto* to = static_cast<std::byte*>(bytes);
    while (count > 0) {
      const ssize_t n = calls_.read(file_.get(), to, static_cast<std::size_t>(count), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return n < 0 ? errno : ENODATA;
      to += n, at += n, count -= n;
    }
    return 0;
  }

  /// True if all of the bytes were mapped or in the system's memory, and are now here; false: nothing is known of what is here.
  bool read_now([[maybe_unused]] std::int64_t at, [[maybe_unused]] void* bytes, [[maybe_unused]] std::int64_t count) const {
    if (map_ != nullptr) {
      std::memcpy(bytes, map_.get() + at, static_cast<std::size_t>(count));
      return true;
    }
#if defined(RWF_NOWAIT)
    const iovec to{bytes, static_cast<std::size_t>(count)};
    return calls_.read == ::pread && ::preadv2(file_.get(), &to, 1, static_cast<off_t>(at), RWF_NOWAIT) == count;
#else
    return false;
#endif
  }

  /// Bytes that will be read soon: the disk may begin with all of them at once.
  void expect([[maybe_unused]] std::int64_t at, [[maybe_unused]] std::int64_t count) const {
#if defined(POSIX_FADV_WILLNEED)
    (void)::posix_fadvise(file_.get(), static_cast<off_t>(at), static_cast<off_t>(count), POSIX_FADV_WILLNEED);
#endif
  }

 private:
  file_handle file_;
  std::unique_ptr<std::byte, unmapping> map_;
  far_calls calls_;
  std::int64_t written_ = 0;  // up to here
};

/// What a cache throws for what a far_file has returned: with the caller's line.
///
/// errors      capacity_error where the disk is full; else std::system_error
[[noreturn]] inline void throw_far_error(int error, const char* doing, std::int64_t bytes, call_site where) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) throw capacity_error("bytes of the file of far rows", bytes, 0, where);
  throw std::system_error(error, std::generic_category(), joined({where.file, ":", std::to_string(where.line), ": far rows: ", doing}));
}

}  // namespace kvx
