#pragma once
// An open file of the system, closed by its owner.

#include <unistd.h>

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

}  // namespace kvx
