#pragma once
// Allocations that fail on demand: the n-th from operator new (which the program must replace), or from a memory resource.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace kvx::test {

/// What a replaced operator new counts, over the whole program.
struct allocations {
  inline static std::atomic<std::int64_t> made = 0;
  inline static std::atomic<std::int64_t> until_failure = -1;  // negative: none fails

  /// Memory as operator new gives it.
  static void* make(std::size_t bytes, std::size_t alignment) {
    ++made;
    if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
    void* const p = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (p == nullptr) throw std::bad_alloc();
    return p;
  }
};

/// While it lives, allocation n (from 0) fails, once.
class allocation_failure {
 public:
  explicit allocation_failure(std::int64_t n) { allocations::until_failure = n; }
  ~allocation_failure() { allocations::until_failure = -1; }
  allocation_failure(const allocation_failure&) = delete;
  allocation_failure& operator=(const allocation_failure&) = delete;

  bool happened() const { return allocations::until_failure < 0; }
};

/// A resource that fails when `until_failure` reaches 0, and counts what was not given back.
class failing_resource final : public std::pmr::memory_resource {
 public:
  std::int64_t until_failure = -1;
  std::int64_t blocks = 0;

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
    void* const p = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    ++blocks;
    return p;
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    --blocks;
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace kvx::test
