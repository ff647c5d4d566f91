#pragma once
// Device memory that fails on demand, and calls that must survive it.

#include <kvx/backend/cuda/memory.cuh>

#include <cuda_runtime.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvx::test {

/// Allocation `until_failure` from now fails, once (negative: none does); counts what was not given back.
class failing_device_memory final : public device_resource {
 public:
  std::int64_t until_failure = -1;
  std::int64_t blocks = 0;

  void* allocate(std::size_t bytes, cudaStream_t stream) override {
    if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
    void* const p = stream_ordered_memory()->allocate(bytes, stream);
    ++blocks;
    return p;
  }
  void deallocate(void* p, std::size_t bytes, cudaStream_t stream) noexcept override {
    --blocks;
    stream_ordered_memory()->deallocate(p, bytes, stream);
  }
};

/// Fails allocation 0, 1, 2, ... of a call until none fails; it must throw each time before, and `look` must see no change. Returns how
/// many allocations the call makes.
///
/// sparse      0, 1, 2, 4, 7, 11, ... instead, where there are many
template <class Look, class Call>
std::int64_t survive(failing_device_memory& memory, const char* what, const Look& look, const Call& call, bool sparse = false) {
  CAPTURE(what);
  for (std::int64_t n = 0; n < 1000; n += sparse ? 1 + n / 2 : 1) {
    CAPTURE(n);
    const auto before = look();
    memory.until_failure = n;
    bool threw = false;
    try {
      call();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    const bool failed = memory.until_failure < 0;
    memory.until_failure = -1;
    REQUIRE(threw == failed);
    if (!threw) return n;
    REQUIRE(look() == before);
  }
  FAIL("never succeeds");
  return -1;
}

}  // namespace kvx::test
