#pragma once
// What libFuzzer changes: a sound file to begin with, and checksums that agree with every second damage, without which nothing behind them
// is ever reached.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace kvx::test {

/// One round of LLVMFuzzerCustomMutator.
///
/// sound       what takes the place of an input that is shorter than `least`
/// mend        mend(bytes) makes checksums agree
template <class Mend>
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed, const std::vector<std::byte>& sound,
                   std::size_t least, const Mend& mend) {
  if (size < least && sound.size() <= most) {
    std::memcpy(data, sound.data(), sound.size());
    size = sound.size();
  }
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 2 == 0) mend(std::as_writable_bytes(std::span(data, size)));
  return size;
}

}  // namespace kvx::test
