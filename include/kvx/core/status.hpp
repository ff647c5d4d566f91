#pragma once
// What reading bytes from outside comes to: done, or one line that says what is wrong with them.

#include <cstdint>
#include <string>

namespace kvx {

/// The outcome of a call that takes bytes which kvx did not just make, or that may run out of room.
///
/// kind        what a program decides by
/// what        what a person reads: the field or the step, a literal; "" where the kind says all
struct [[nodiscard]] status {
  enum class code : std::uint8_t {
    ok,
    no_space,     ///< the result does not fit the memory that was handed in
    truncated,    ///< the bytes end too early
    corrupt,      ///< the bytes contradict themselves or their checksum
    unsupported,  ///< written by another version, or on a machine of another kind
    mismatch,     ///< sound, but of another model, layout or calibration
    unfit,        ///< numbers that this codec cannot hold: NaN, infinity, out of range
    not_found,    ///< the store holds nothing under this key
    io,           ///< the system refused; what names the call
  };
  code kind = code::ok;
  const char* what = "";

  constexpr bool ok() const { return kind == code::ok; }
  friend constexpr bool operator==(const status& s, code expected) { return s.kind == expected; }
};

constexpr const char* name_of(status::code kind) {
  switch (kind) {
    case status::code::ok: return "ok";
    case status::code::no_space: return "no space";
    case status::code::truncated: return "truncated";
    case status::code::corrupt: return "corrupt";
    case status::code::unsupported: return "unsupported";
    case status::code::mismatch: return "mismatch";
    case status::code::unfit: return "unfit";
    case status::code::not_found: return "not found";
    case status::code::io: return "input and output";
  }
  return "unknown";
}

/// One line.
inline std::string message(const status& s) {
  return *s.what == 0 ? std::string(name_of(s.kind)) : std::string(name_of(s.kind)) + ": " + s.what;
}

}  // namespace kvx
