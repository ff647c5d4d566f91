#pragma once
// An open file of the system, closed by its owner, and how long it may become.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace kvx {

/// An open file, closed by its owner.
class file_handle {
 public:
  file_handle() = default;
  explicit file_handle(int file) : file_(file) {}
  file_handle(file_handle&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  file_handle& operator=(file_handle other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~file_handle() {
    if (file_ >= 0) ::close(file_);
  }
  int get() const { return file_; }
  bool ok() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

/// Whether files of this process may become so long (RLIMIT_FSIZE). What writes beyond that is ended by a signal, not told.
inline bool may_grow_to(std::uint64_t bytes) {
  rlimit most = {};
  return ::getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY || bytes <= most.rlim_cur;
}

}  // namespace kvx
