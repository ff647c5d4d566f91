#pragma once
// The calibration file: a calibration as bytes, checked before any of it is used.

#include <kvx/codec/calibration.hpp>
#include <kvx/core/bits.hpp>
#include <kvx/core/checksum.hpp>
#include <kvx/core/digest.hpp>
#include <kvx/core/status.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace kvx {

inline constexpr std::uint16_t calibration_version = 1;

/// The first 32 bytes of a calibration file; fields follow one after the other, little-endian, without padding: docs/formats.md.
struct calibration_file_header {
  std::array<char, 8> magic = {'k', 'v', 'x', 'c', 'a', 'l', 'i', 'b'};
  std::uint16_t version = calibration_version;
  std::uint16_t byte_order = 0x0102;
  std::uint32_t header_bytes = 32;
  std::uint64_t body_bytes = 0;
  std::uint64_t body_checksum = 0;
};
static_assert(sizeof(calibration_file_header) == 32 && std::is_trivially_copyable_v<calibration_file_header>);

/// Walks the fields of a calibration in the order of the file; `io` puts or takes them. One walk for both, so that they cannot differ.
///
/// errors      false as soon as io gives false
class calibration_fields {
 public:
  template <class Io>
  static bool walk(Io& io, calibration& c) {
    bool good = io.number(c.shape.layers) && io.number(c.shape.kv_heads) && io.number(c.shape.key_dim) && io.number(c.shape.value_dim) &&
                io.number(c.rounding) && io.number(c.sinks) && io.flag(c.weighted);
    good = good && io.list(c.turns, [&](rope& r) { return turn(io, r); }) && io.numbers(c.turn_of_layer);
    good = good && predictor(io, c.key_predictor) && predictor(io, c.value_predictor);
    good = good && io.list(c.spans, [&](feature_span& s) { return io.numbers(s.layers) && io.number(s.first_head) && io.number(s.heads); });
    good = good && io.list(c.keys, [&](span_basis& b) { return basis(io, b); });
    good = good && io.list(c.values, [&](span_basis& b) { return basis(io, b); });
    return good && io.numbers(c.costs);
  }

 private:
  template <class Io>
  static bool turn(Io& io, rope& r) {
    return io.enumeration(r.pairs.channels) && io.number(r.pairs.dims) && io.number(r.base) && io.enumeration(r.scaled) &&
           io.number(r.factor) && io.number(r.original_tokens) && io.number(r.low_frequency) && io.number(r.high_frequency) &&
           io.number(r.fast_turns) && io.number(r.slow_turns) && io.number(r.magnitude);
  }
  template <class Io>
  static bool predictor(Io& io, token_predictor& p) {
    return io.number(p.embedding) && io.number(p.rank) && io.numbers(p.inputs);
  }
  template <class Io>
  static bool basis(Io& io, span_basis& b) {
    return io.numbers(b.mean) && io.numbers(b.weights) && io.numbers(b.basis) && io.numbers(b.scales) && io.numbers(b.outputs) &&
           io.numbers(b.plan.runs) && io.numbers(b.levels);
  }
};

/// Puts fields.
class calibration_bytes {
 public:
  template <class T>
  bool number(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(std::span(&x, 1));
    out.insert(out.end(), bytes.begin(), bytes.end());
    return true;
  }
  template <class T>
  bool enumeration(const T& x) {
    return number(static_cast<std::uint8_t>(x));
  }
  bool flag(bool x) { return number(static_cast<std::uint8_t>(x)); }
  template <class T>
  bool numbers(const std::vector<T>& x) {
    number(static_cast<std::uint64_t>(x.size()));
    const auto bytes = std::as_bytes(std::span(x));
    out.insert(out.end(), bytes.begin(), bytes.end());
    return true;
  }
  template <class T, class Each>
  bool list(std::vector<T>& x, const Each& each) {
    number(static_cast<std::uint64_t>(x.size()));
    for (T& item : x) each(item);
    return true;
  }

  std::vector<std::byte> out;
};

/// Takes fields; a list is never longer than the bytes that are left, so nothing larger than the file is allocated.
class calibration_parser {
 public:
  explicit calibration_parser(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  bool number(T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (left_.size() < sizeof x) return false;
    std::memcpy(&x, left_.data(), sizeof x);
    left_ = left_.subspan(sizeof x);
    return true;
  }
  template <class T>
  bool enumeration(T& x) {
    std::uint8_t byte = 0;
    if (!number(byte)) return false;
    x = static_cast<T>(byte);
    return true;
  }
  bool flag(bool& x) {
    std::uint8_t byte = 0;
    if (!number(byte) || byte > 1) return false;
    x = byte == 1;
    return true;
  }
  template <class T>
  bool numbers(std::vector<T>& x) {
    std::uint64_t count = 0;
    if (!number(count) || count > left_.size() / sizeof(T)) return false;
    x.resize(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(x.data(), left_.data(), x.size() * sizeof(T));
    left_ = left_.subspan(x.size() * sizeof(T));
    return true;
  }
  template <class T, class Each>
  bool list(std::vector<T>& x, const Each& each) {
    std::uint64_t count = 0;
    if (!number(count) || count > left_.size()) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!each(x.emplace_back())) return false;
    }
    return true;
  }
  bool finished() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

/// Whether the parts of a calibration fit together: what a decoder relies on.
///
/// errors      corrupt, and which field
inline status check_calibration(const calibration& c) {
  using code = status::code;
  const auto wrong = [](const char* what) { return status{code::corrupt, what}; };
  const auto finite = [](const std::vector<float>& x) { return std::all_of(x.begin(), x.end(), [](float y) { return y - y == 0; }); };
  const calibration_shape& shape = c.shape;
  const bool sane = shape.layers >= 1 && shape.layers <= 65535 && shape.kv_heads >= 1 && shape.kv_heads <= 65535 && shape.key_dim >= 1 &&
                    shape.key_dim <= 65535 && shape.value_dim >= 1 && shape.value_dim <= 65535;
  if (!sane) return wrong("calibration: shape");
  if (c.rounding < 0 || c.rounding > 128) return wrong("calibration: rounding");
  if (c.sinks < 0 || c.sinks > 1 << 20) return wrong("calibration: sinks");
  for (const rope& r : c.turns) {
    if (r.pairs.channels > rope_pairs::order::halves || r.scaled > rope::scaling::yarn || r.pairs.dims < 0 || r.pairs.dims % 2 != 0 ||
        r.pairs.dims > shape.key_dim) {
      return wrong("calibration: rotary embedding");
    }
    try {
      static_cast<void>(rope_frequencies(r));
    } catch (const usage_error&) {
      return wrong("calibration: rotary embedding");
    }
  }
  if (!c.turn_of_layer.empty() && c.turn_of_layer.size() != static_cast<std::size_t>(shape.layers)) {
    return wrong("calibration: a rotary embedding a layer");
  }
  for (const std::uint16_t t : c.turn_of_layer) {
    if (t >= c.turns.size()) return wrong("calibration: number of a rotary embedding");
  }
  for (const token_predictor* p : {&c.key_predictor, &c.value_predictor}) {
    if (p->embedding < 0 || (p->embedding == 0) != (p->rank == 0) || p->embedding > 1 << 20 || p->rank < 0 || p->rank > 1 << 20 ||
        static_cast<std::int64_t>(p->inputs.size()) != 2 * p->embedding * p->rank) {
      return wrong("calibration: predictor");
    }
  }
  if (c.spans.empty() || c.keys.size() != c.spans.size() || c.values.size() != c.spans.size()) return wrong("calibration: spans");
  for (std::size_t i = 0; i < 2 * c.spans.size(); ++i) {
    const feature_span& s = c.spans[i / 2];
    const bool is_key = i % 2 == 0;
    const span_basis& b = is_key ? c.keys[i / 2] : c.values[i / 2];
    const token_predictor& p = is_key ? c.key_predictor : c.value_predictor;
    if (s.layers.empty() || s.heads < 1 || s.first_head < 0 || s.heads > shape.kv_heads - s.first_head) return wrong("calibration: a span");
    for (std::size_t l = 0; l < s.layers.size(); ++l) {
      if (s.layers[l] < 0 || s.layers[l] >= shape.layers || (l > 0 && s.layers[l] <= s.layers[l - 1])) {
        return wrong("calibration: layers of a span");
      }
    }
    const std::int64_t features = s.features(is_key ? shape.key_dim : shape.value_dim);
    if (b.features() != features || !finite(b.mean)) return wrong("calibration: mean");
    if (!b.weights.empty() && (static_cast<std::int64_t>(b.weights.size()) != features || !finite(b.weights) ||
                               !std::all_of(b.weights.begin(), b.weights.end(), [](float w) { return w > 0; }))) {
      return wrong("calibration: weights");
    }
    if (b.rank() > features || static_cast<std::int64_t>(b.basis.size()) != b.rank() * features) return wrong("calibration: basis");
    if (static_cast<std::int64_t>(b.outputs.size()) != p.rank * features) return wrong("calibration: outputs of the predictor");
    if (!std::all_of(b.basis.begin(), b.basis.end(), [](half x) { return (x.bits & 0x7c00u) != 0x7c00u; }) ||
        !std::all_of(b.outputs.begin(), b.outputs.end(), [](half x) { return (x.bits & 0x7c00u) != 0x7c00u; })) {
      return wrong("calibration: a basis or predictor is finite");
    }
    for (const component_scale& scale : b.scales) {
      if (scale.laplace >= shape_count || scale.reserved != 0) return wrong("calibration: shape of a scale");
    }
    std::int64_t components = 0;
    for (const bit_run& run : b.plan.runs) {
      if (run.size < 1 || run.size > features || (run.bits != 0 && run.bits != 2 && run.bits != 4 && run.bits != 8)) {
        return wrong("calibration: plan");
      }
      components += run.size;
      if (components > b.rank()) return wrong("calibration: plan");
    }
    if (!b.levels.empty() && static_cast<std::int64_t>(b.levels.size()) != components) return wrong("calibration: alphabets of levels");
    for (const symbol_frequencies& f : b.levels) {
      if (!sums_to_one(f)) return wrong("calibration: alphabets of levels");
    }
  }
  for (std::size_t i = 0; i < c.costs.size(); ++i) {
    const step_cost& cost = c.costs[i];
    const bool good = cost.bits >= 0 && cost.key_error >= 0 && cost.value_error >= 0 && cost.bits < infinity && cost.key_error < infinity &&
                      cost.value_error < infinity && cost.reserved == 0;
    if (!good || (i > 0 && cost.log2_step <= c.costs[i - 1].log2_step)) return wrong("calibration: costs of steps");
  }
  return {};
}

/// The bytes of a calibration.
inline std::vector<std::byte> write_calibration(const calibration& c) {
  calibration_bytes body;
  calibration copy = c;
  calibration_fields::walk(body, copy);
  calibration_file_header header;
  header.body_bytes = body.out.size();
  header.body_checksum = checksum(body.out);
  const auto front = std::as_bytes(std::span(&header, 1));
  body.out.insert(body.out.begin(), front.begin(), front.end());
  return std::move(body.out);
}

/// Reads a calibration; `c` is changed only where all is well.
///
/// errors      truncated, unsupported (no calibration file, another version, the other byte order), corrupt, and which field
inline status read_calibration(std::span<const std::byte> bytes, calibration& c) {
  using code = status::code;
  calibration_file_header header;
  if (bytes.size() < sizeof header) return {code::truncated, "calibration: header"};
  std::memcpy(&header, bytes.data(), sizeof header);
  const calibration_file_header expected;
  if (header.magic != expected.magic) return {code::unsupported, "calibration: no calibration file"};
  if (header.byte_order != expected.byte_order) return {code::unsupported, "calibration: byte order"};
  if (header.version != expected.version) return {code::unsupported, "calibration: version"};
  if (header.header_bytes != expected.header_bytes) return {code::corrupt, "calibration: header bytes"};
  const auto body = bytes.subspan(sizeof header);
  if (header.body_bytes > body.size()) return {code::truncated, "calibration: body"};
  if (header.body_bytes < body.size()) return {code::corrupt, "calibration: bytes behind the end"};
  if (header.body_checksum != checksum(body)) return {code::corrupt, "calibration: checksum"};
  calibration_parser parser(body);
  calibration read;
  if (!calibration_fields::walk(parser, read) || !parser.finished()) return {code::corrupt, "calibration: fields"};
  if (const status s = check_calibration(read); !s.ok()) return s;
  c = std::move(read);
  return {};
}

/// What frames name a calibration by: the digest of its bytes.
inline digest fingerprint(const calibration& c) {
  field_digest fields;
  fields.add("calibration", std::span<const std::byte>(write_calibration(c)));
  return fields.finish();
}

}  // namespace kvx
