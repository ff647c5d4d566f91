#pragma once
// A trace file: the q, k, v and k before RoPE that a model computed for a text, layer by layer.

#include "forward_pass.hpp"

#include <kvx/core/element.hpp>

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace decode_loop {

/// What a trace holds. T tokens at positions [first_position, first_position + T); queries of the last `queries` of them.
///
/// The file, little-endian, no padding: 88 bytes of header, then blocks, each followed by its checksum (u64).
///   0  char[8] "kvxtrace"      8  u32 version = 1         12  u32 element: 0 float, 1 half
///  16  u32 first layer        20  u32 layers              24  u32 KV heads (H)         28  u32 query heads (Q)
///  32  u32 key dim (D)        36  u32 value dim (Dv)      40  u64 first position       48  u64 tokens (T)
///  56  u64 queries (Tq <= T)  64  f64 RoPE base           72  u32 RoPE pairs: 0 interleaved, 1 half-split
///  76  u32 1 if k0 is held    80  u64 checksum of bytes 0..79
///   blocks: token ids (T) i32; then for each layer k (T, H, D), v (T, H, Dv), k0 (T, H, D) if held, q (Tq, Q, D)
/// A checksum is FNV-1a of 64 bits over the bytes: any single changed byte changes it.
struct trace_shape {
  bool half = true;
  std::uint32_t first_layer = 0;
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t query_heads = 0;
  std::uint32_t key_dim = 0;
  std::uint32_t value_dim = 0;
  std::uint64_t first_position = 0;
  std::uint64_t tokens = 0;
  std::uint64_t queries = 0;
  double rope_base = 10000;
  rope_pairs pairs = rope_pairs::interleaved;
  bool k0 = true;
};

enum class trace_part { k, v, k0, q };

/// Writes a trace while a prompt runs, in chunks of tokens.
///
/// errors      file_error where the file cannot be written; kvx::usage_error where fewer rows came than the shape says
class trace_writer {
 public:
  trace_writer(const std::string& path, const trace_shape& shape);

  void write_ids(std::span<const token_id> ids);

  /// The next rows of a layer of the model; layers outside the shape, and queries before the last `queries`, are passed over.
  void append(std::size_t layer, const layer_rows& rows);

  /// Writes the checksums. Without it the file is refused by the reader.
  void finish();

 private:
  struct block {
    std::uint64_t offset = 0, bytes = 0, written = 0, checksum = 0;
  };
  void put(block& to, std::span<const float> values);

  std::string path_;
  trace_shape shape_;
  std::ofstream out_;
  std::vector<block> blocks_;                                           // ids, then four a layer
  std::vector<std::uint64_t> tokens_seen_;                              // by layer
};

/// Reads a trace, one block at a time.
///
/// errors      file_error that names the field or the block: another format or version, a shape that the file's size contradicts,
///             a checksum that differs. Nothing larger than the file is allocated
class trace_reader {
 public:
  explicit trace_reader(const std::string& path);
  trace_reader(std::unique_ptr<std::istream> in, std::string name);

  const trace_shape& shape() const { return shape_; }
  std::vector<token_id> ids();

  /// A part of a layer of the model as floats, row after row.
  std::vector<float> read(std::size_t layer, trace_part part);

 private:
  std::vector<char> read_block(std::size_t index, const std::string& place);

  std::unique_ptr<std::istream> in_;
  std::string name_;
  trace_shape shape_;
};

}  // namespace decode_loop
