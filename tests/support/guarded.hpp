#pragma once
// Memory between two unreadable pages: whoever reads past either end dies of it.

#include <cstddef>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace kvx::test {

/// `bytes` bytes of zeros that end where an unreadable page begins (at_end), or begin where one ends.
class guarded {
 public:
  guarded(std::size_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    length_ = inner + 2 * page;
    map_ = static_cast<std::byte*>(mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(map_, page, PROT_NONE);
    mprotect(map_ + page + inner, page, PROT_NONE);
    data_ = map_ + page + (at_end ? inner - bytes : 0);
  }
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;
  ~guarded() { munmap(map_, length_); }

  std::byte* data() const { return data_; }

 private:
  std::byte* map_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace kvx::test
