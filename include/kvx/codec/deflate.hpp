#pragma once
// DEFLATE by libdeflate: opt-in, link kvx::deflate.

#include <kvx/codec/host/chain.hpp>
#include <kvx/codec/packed.hpp>
#include <kvx/core/check.hpp>
#include <kvx/core/status.hpp>

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace kvx {

/// General-purpose coding of packed levels: a policy of a chain.
///
/// level       1 (fast) to 12 (small); 6 is what the paper's figures use
/// order       the order in which levels are packed before: packing::tokens is the paper's, packing::components is smaller
struct deflate {
  int level = 6;
  packing order = packing::components;
  friend constexpr bool operator==(const deflate&, const deflate&) = default;
};

/// Compresses bytes to a raw DEFLATE stream (RFC 1951).
///
/// errors      no_space where the stream is longer than out, which may be shorter than the input; usage_error: another level;
///             std::bad_alloc
/// cost        libdeflate's: one compressor, of some 1 MB, is made for the call
inline status deflate_encode(const deflate& d, std::span<const std::byte> in, std::span<std::byte> out, std::int64_t& bytes,
                             call_site where = call_site::here()) {
  require_range("deflate: level", d.level, 1, 12, where);
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(libdeflate_alloc_compressor(d.level),
                                                                                                 libdeflate_free_compressor);
  if (compressor == nullptr) throw std::bad_alloc();
  const std::size_t size = libdeflate_deflate_compress(compressor.get(), in.data(), in.size(), out.data(), out.size());
  bytes = static_cast<std::int64_t>(size);
  if (size == 0) return {status::code::no_space, "DEFLATE stream"};
  return {};
}

/// Restores exactly out.size() bytes from a stream that is used up exactly.
///
/// errors      corrupt: what is no stream, or one of another length. std::bad_alloc
inline status deflate_decode(const deflate&, std::span<const std::byte> in, std::span<std::byte> out) {
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(libdeflate_alloc_decompressor(),
                                                                                                       libdeflate_free_decompressor);
  if (decompressor == nullptr) throw std::bad_alloc();
  std::size_t used = 0, made = 0;
  const auto result = libdeflate_deflate_decompress_ex(decompressor.get(), in.data(), in.size(), out.data(), out.size(), &used, &made);
  if (result != LIBDEFLATE_SUCCESS || used != in.size() || made != out.size()) return {status::code::corrupt, "DEFLATE stream"};
  return {};
}

/// Levels of a bit plan, packed, then compressed: see the other coders in host/chain.hpp.
inline status encode_levels(const host& exec, const deflate& coder, const span_model& model,
                            const component_matrix<const std::int16_t>& levels, std::span<const run_range> ranges, std::span<std::byte> out,
                            chunk_header& header, std::int64_t& bytes) {
  header.kind = chunk_kind::groups_deflate;
  header.order = static_cast<std::uint8_t>(coder.order);
  std::vector<std::byte> packed(static_cast<std::size_t>(packed_bytes(*model.plan, levels.tokens)));
  const status s = pack(exec, *model.plan, levels, ranges, coder.order, packed, bytes);
  return s.ok() ? deflate_encode(coder, packed, out, bytes) : s;
}

constexpr chunk_kind kind_of(const deflate&) { return chunk_kind::groups_deflate; }

inline status decode_levels(const host& exec, const deflate& coder, const span_model& model, const chunk_header& header,
                            std::span<const std::byte> in, const component_matrix<std::int16_t>& levels, std::span<run_range> ranges) {
  std::vector<std::byte> packed(static_cast<std::size_t>(packed_bytes(*model.plan, levels.tokens)));
  const status s = deflate_decode(coder, in, packed);
  return s.ok() ? unpack(exec, *model.plan, packed, static_cast<packing>(header.order), levels, ranges) : s;
}

}  // namespace kvx
