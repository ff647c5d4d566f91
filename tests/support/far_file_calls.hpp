#pragma once
// Calls that a file of far rows is read and written by: some fail, some find nothing, some are counted or noted.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include <sys/types.h>
#include <unistd.h>

namespace kvx::test::far_file_calls {

inline int failing = 0;  // calls from now on that succeed before one fails; 0: none fails
inline int error_of_failure = ENOSPC;
inline bool fails() {
  if (failing == 0 || --failing > 0) return false;
  errno = error_of_failure;
  return true;
}
inline ssize_t read_or_fail(int file, void* bytes, std::size_t n, off_t at) { return fails() ? -1 : ::pread(file, bytes, n, at); }
inline ssize_t write_or_fail(int file, const void* bytes, std::size_t n, off_t at) { return fails() ? -1 : ::pwrite(file, bytes, n, at); }
inline ssize_t read_nothing(int, void*, std::size_t, off_t) { return 0; }
inline std::int64_t bytes_read = 0;
inline ssize_t read_counted(int file, void* bytes, std::size_t n, off_t at) {
  const ssize_t read = ::pread(file, bytes, n, at);
  bytes_read += std::max<ssize_t>(read, 0);
  return read;
}
inline int written_to = -1;
inline ssize_t write_noted(int file, const void* bytes, std::size_t n, off_t at) { return ::pwrite(written_to = file, bytes, n, at); }

}  // namespace kvx::test::far_file_calls
