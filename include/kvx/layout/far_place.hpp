#pragma once
// Where the far rows of a cache on the host go.

#include <cstddef>
#include <string>

#include <sys/types.h>
#include <unistd.h>

namespace kvx {

/// POSIX calls by their names, so that a test can fail each of them; results and errno as there.
struct far_calls {
  ssize_t (*read)(int file, void* bytes, std::size_t count, off_t at) = ::pread;
  ssize_t (*write)(int file, const void* bytes, std::size_t count, off_t at) = ::pwrite;
};

/// The file that they lie in.
///
/// mapped      pages that steps select are read through a mapping: two thirds of the time where the system has them in its memory. A
///             disk that fails, or whoever shortens the file, then ends the process; and what is on the disk alone is read page after page.
///             By calls otherwise
/// folder      of a file without a name; "": TMPDIR, else /tmp. Choose one on a disk: some systems keep those in memory
struct far_place {
  std::string folder = {};
  bool mapped = false;
  far_calls calls = {};
};

}  // namespace kvx
