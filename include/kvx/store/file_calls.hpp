#pragma once
// The calls of the system that a file store makes, so that a test can fail each of them.

#include <cstddef>
#include <cstdio>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace kvx {

// Named functions: open takes a variable number of arguments, and so has no pointer of this type.
inline int open_file(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }

/// POSIX calls by their names; results and errno as there.
struct file_calls {
  int (*open)(const char* path, int flags, mode_t mode) = open_file;
  ssize_t (*write)(int file, const void* bytes, std::size_t count) = ::write;
  int (*fsync)(int file) = ::fsync;
  int (*rename)(const char* from, const char* to) = std::rename;
  int (*unlink)(const char* path) = ::unlink;
};

}  // namespace kvx
