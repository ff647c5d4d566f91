// libFuzzer: frames. A status or a result, never a crash or a read outside; what is read as sound is sound.

#include <support/fuzz_mutator.hpp>
#include <support/sample_frame.hpp>

#include <cstdlib>

using namespace kvx;

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  return test::mutate(data, size, most, seed, test::sample_frame(), sizeof(frame_header), test::mend_frame);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto frame = std::as_bytes(std::span(data, size));
  frame_view view;
  const bool opened = open_frame(frame, frame.size(), view).ok();
  bool sound = opened;
  for (const frame_section& section : view.sections) {
    std::span<const std::byte> payload;
    sound = read_section(frame, section, payload).ok() && sound;
    if (payload.size() > frame.size()) std::abort();
  }
  frame_view checked;
  if (check_frame(frame, checked).ok() && !sound) std::abort();
  return 0;
}
