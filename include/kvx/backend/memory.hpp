#pragma once
// Host memory for pools: reserved at once, touched only where rows are written, in large pages where the system grants them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvx {

/// Alignment of every allocation of a cache: a cache line, and the widest vector.
inline constexpr std::size_t memory_alignment = 64;

/// The default resource. On Linux blocks of 2 MiB and more are anonymous mappings: zero until touched, not counted before, and
/// advised to use 2 MiB pages (a scan of 100,000 rows misses the TLB on every page otherwise); smaller ones come from new.
class lazy_page_resource final : public std::pmr::memory_resource {
#if defined(__linux__)
  static constexpr std::size_t large_page = std::size_t{1} << 21;

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes < large_page) return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    if (alignment > large_page || bytes > SIZE_MAX / 2) throw std::bad_alloc();
    // One large page more than is kept, so that a start on a large-page boundary lies inside; what is over is given back.
    const std::size_t kept = kept_length(bytes);
    const std::size_t length = kept + large_page;
    void* const mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    void* start = mapped;
    std::size_t space = length;
    std::align(large_page, kept, start, space);
    const std::size_t before = length - space;
    if (before > 0) munmap(mapped, before);
    if (space > kept) munmap(static_cast<std::byte*>(start) + kept, space - kept);
    madvise(start, kept, MADV_HUGEPAGE);  // advice: refusal changes speed alone
    return start;
  }

  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    if (bytes < large_page) return std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
    munmap(p, kept_length(bytes));
  }

  /// What stays mapped: whole system pages (4 KiB at least divide it on every Linux system with pages up to 64 KiB).
  static std::size_t kept_length(std::size_t bytes) { return (bytes + 0xffff) / 0x10000 * 0x10000; }
#else
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
#endif
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

/// The one instance of lazy_page_resource; it lives as long as the program.
inline std::pmr::memory_resource* lazy_pages() {
  static lazy_page_resource resource;
  return &resource;
}

/// A block of bytes that its owner frees. Moves; contents undefined after allocation.
class memory_block {
 public:
  memory_block() = default;
  memory_block(std::pmr::memory_resource* resource, std::int64_t bytes) : resource_(resource), bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes > 0) data_ = static_cast<std::byte*>(resource->allocate(bytes_, memory_alignment));
  }
  memory_block(memory_block&& other) noexcept
      : resource_(other.resource_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  memory_block& operator=(memory_block other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~memory_block() {
    if (data_ != nullptr) resource_->deallocate(data_, bytes_, memory_alignment);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_); }

 private:
  std::pmr::memory_resource* resource_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kvx
