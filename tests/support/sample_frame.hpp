#pragma once
// A small frame, and frames whose checksums agree with their damage.

#include <kvx/codec/frame.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvx::test {

inline std::vector<std::byte> sample_frame() {
  frame_header h;
  h.layers = 3;
  h.kv_heads = 2;
  h.tokens = 100;
  frame_writer writer(h, 4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    frame_section section;
    section.first_token = 25 * i;
    section.tokens = 25;
    section.layers = 3;
    writer.add(section, std::vector<std::byte>(7 * i + 1, std::byte{9}));
  }
  return writer.finish();
}

/// Makes the checksums of header and table those of the bytes, whatever happened to them.
inline void mend_frame(std::span<std::byte> frame) {
  frame_header h;
  if (frame.size() < sizeof h) return;
  std::memcpy(&h, frame.data(), sizeof h);
  const std::size_t table = std::min<std::size_t>(frame.size() - sizeof h, std::size_t{h.sections} * sizeof(frame_section));
  h.table_checksum = checksum(frame.subspan(sizeof h, table));
  h.header_checksum = checksum(std::as_bytes(std::span(&h, 1)).first(offsetof(frame_header, header_checksum)));
  std::memcpy(frame.data(), &h, sizeof h);
}

}  // namespace kvx::test
