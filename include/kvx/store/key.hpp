#pragma once
// The keys of stored sequences: digests of everything that must agree before one may be used.

#include <kvx/codec/frame.hpp>
#include <kvx/core/digest.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace kvx {

/// What must be the same in the one who saves and the one who restores, beside the tokens.
///
/// salt        keeps tenants apart: who does not know it finds nothing
struct key_family {
  digest model;
  digest layout;
  digest calibration;
  std::string_view salt;
};

/// The digest of a layout: the shape fields of a frame.
inline digest layout_digest(const frame_header& h) {
  return field_digest()
      .add("layers", h.layers)
      .add("kv heads", h.kv_heads)
      .add("key dim", h.key_dim)
      .add("value dim", h.value_dim)
      .add("page tokens", h.page_tokens)
      .add("sink", h.sink)
      .add("element", h.element)
      .add("codec", h.codec)
      .finish();
}

/// The family of a frame; `salt` is not in it.
inline key_family family_of(const frame_header& h, std::string_view salt) { return {h.model, layout_digest(h), h.calibration, salt}; }

inline digest family_digest(const key_family& f) {
  return field_digest()
      .add("kvx family", 1)
      .add("model", f.model)
      .add("layout", f.layout)
      .add("calibration", f.calibration)
      .add("salt", f.salt)
      .finish();
}

/// The key of a sequence: of its family and all of its tokens.
///
/// exactness   the same in every process and on every machine; two sequences share a key only by a collision of SHA-256
inline digest key_of(const digest& family, std::span<const std::int32_t> tokens) {
  return field_digest().add("kvx sequence", 1).add("family", family).add("tokens", tokens).finish();
}

}  // namespace kvx
