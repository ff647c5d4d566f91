#pragma once
// A reader of GGUF files, versions 2 and 3: typed metadata by key, tensors by name as floats.

#include "file_error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace decode_loop {

/// A tensor of the file; dims[0] is the innermost and contiguous one, unused dims are 1.
struct gguf_tensor {
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};
  std::uint32_t type = 0;                                               // ggml's number: see dequantise.hpp
  std::span<const std::byte> bytes;
};

/// A metadata value, validated when the file was opened and decoded when it is asked for.
struct gguf_value {
  std::uint32_t type = 0;                                               // GGUF's number; of the elements, for an array
  bool is_array = false;
  std::uint64_t count = 1;
  std::uint64_t offset = 0;                                             // of the first element in the file
};

/// A whole file, held in memory.
///
/// what        the constructors check every bound, count and size before anything is believed; nothing is allocated for a count
///             that the bytes left cannot hold
/// errors      file_error: one line that names the file and the offset, the key or the tensor
/// source      the GGUF specification of the ggml project, docs/gguf.md
class gguf {
 public:
  explicit gguf(const std::string& path) : gguf(read_file(path), path) {}
  gguf(std::vector<std::byte> bytes, std::string name);
  gguf(const gguf&) = delete;                                           // tensors point into the bytes
  gguf& operator=(const gguf&) = delete;

  const std::string& name() const { return name_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const gguf_tensor* tensor(std::string_view name) const;

  /// The value of a key that must be there and of the kind; `number` takes any integer or float that the double holds exactly.
  double number(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;

  /// An integer of a key, within [low, high].
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;

  /// A tensor as floats, row after row. It must have exactly these dims (innermost first).
  std::vector<float> floats(std::string_view name, std::array<std::uint64_t, 2> dims) const;

  [[noreturn]] void fail(std::string_view place, const std::string& what) const;

 private:
  const gguf_value* find(std::string_view key) const;
  const gguf_value& need(std::string_view key) const;

  std::vector<std::byte> bytes_;
  std::string name_;
  std::unordered_map<std::string_view, gguf_value> values_;
  std::unordered_map<std::string_view, gguf_tensor> tensors_;
};

}  // namespace decode_loop
