#pragma once
// Files of this process may not become longer for a while.

#include <sys/resource.h>
#include <sys/types.h>

namespace kvx::test {

class limited_files {
 public:
  explicit limited_files(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  limited_files(const limited_files&) = delete;
  limited_files& operator=(const limited_files&) = delete;
  ~limited_files() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

}  // namespace kvx::test
