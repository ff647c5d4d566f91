#pragma once
// Makes GGUF files in memory, so that the reader's tests need none on disk.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace decode_loop::test {

/// Appends little-endian numbers and length-prefixed texts.
class byte_writer {
 public:
  template <class T>
  void number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));  // insert() has g++ 12 warn of bounds at -O3
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void raw(const std::vector<std::byte>& more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }
  void text(std::string_view value) {
    number<std::uint64_t>(value.size());
    const auto* from = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), from, from + value.size());
  }
  void pad(std::size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(std::byte{0});
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Metadata and tensors, in the order given; `finish` lays them out.
class gguf_writer {
 public:
  template <class T>
  gguf_writer& number(std::string_view key, std::uint32_t type, T value) {
    start(key, type).number(value);
    return *this;
  }
  gguf_writer& integer(std::string_view key, std::uint32_t value) { return number(key, 4, value); }
  gguf_writer& real(std::string_view key, float value) { return number(key, 6, value); }
  gguf_writer& text(std::string_view key, std::string_view value) {
    start(key, 8).text(value);
    return *this;
  }
  gguf_writer& texts(std::string_view key, const std::vector<std::string>& values) {
    auto& out = start(key, 9);
    out.number<std::uint32_t>(8);
    out.number<std::uint64_t>(values.size());
    for (const auto& value : values) out.text(value);
    return *this;
  }
  gguf_writer& tensor(std::string_view name, std::initializer_list<std::uint64_t> dims, std::uint32_t type, std::vector<std::byte> bytes) {
    ++tensors_;
    infos_.text(name);
    infos_.number(static_cast<std::uint32_t>(dims.size()));
    for (const auto d : dims) infos_.number(d);
    infos_.number(type);
    data_.pad(32);
    infos_.number<std::uint64_t>(data_.bytes().size());
    data_.raw(bytes);
    return *this;
  }
  gguf_writer& floats(std::string_view name, std::initializer_list<std::uint64_t> dims, const std::vector<float>& values) {
    byte_writer out;
    for (const float x : values) out.number(x);
    return tensor(name, dims, 0, out.bytes());
  }

  std::vector<std::byte> finish(std::uint32_t version = 3) const {
    byte_writer out;
    out.number<std::uint32_t>(0x46554747);
    out.number(version);
    out.number(tensors_);
    out.number(values_);
    out.raw(metadata_.bytes());
    out.raw(infos_.bytes());
    out.pad(32);
    out.raw(data_.bytes());
    return out.bytes();
  }

 private:
  byte_writer& start(std::string_view key, std::uint32_t type) {
    ++values_;
    metadata_.text(key);
    metadata_.number(type);
    return metadata_;
  }

  std::uint64_t tensors_ = 0, values_ = 0;
  byte_writer metadata_, infos_, data_;
};

}  // namespace decode_loop::test
