#pragma once
// What misuse throws: errors that name the argument, the limit and the caller's line.

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvx {

/// The line of user code that a public function was called from. Taken by default arguments: `call_site where = call_site::here()`.
struct call_site {
  const char* file = "";
  int line = 0;

  static constexpr call_site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

/// The parts of a message one after the other; out of line, so that what may throw stays short.
[[gnu::noinline]] inline std::string joined(std::initializer_list<std::string_view> parts) {
  std::string whole;
  for (const std::string_view part : parts) whole += part;
  return whole;
}

/// An argument that breaks a stated limit. Nothing has changed when it is thrown.
class usage_error : public std::invalid_argument {
 public:
  usage_error(std::string_view message, call_site where)
      : std::invalid_argument(joined({where.file, ":", std::to_string(where.line), ": ", message})), where_(where) {}
  call_site where() const noexcept { return where_; }

 private:
  call_site where_;
};

/// A request that does not fit what is left, in units that the message names. Nothing has changed when it is thrown.
class capacity_error : public std::runtime_error {
 public:
  capacity_error(std::string_view what, std::int64_t needed, std::int64_t free, call_site where)
      : std::runtime_error(joined({where.file, ":", std::to_string(where.line), ": out of ", what, ": ", std::to_string(needed),
                                   " needed, ", std::to_string(free), " free"})),
        needed_(needed),
        free_(free) {}
  std::int64_t needed() const noexcept { return needed_; }
  std::int64_t free() const noexcept { return free_; }

 private:
  std::int64_t needed_;
  std::int64_t free_;
};

/// Throws a usage_error unless `holds`. The message is a literal: the good path builds no string.
inline void require(bool holds, const char* message, call_site where) {
  if (!holds) throw usage_error(message, where);
}

/// Throws a usage_error unless low <= value <= high; the message holds the name and all three numbers.
inline void require_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high, call_site where) {
  if (value < low || value > high) {
    throw usage_error(joined({name, " is ", std::to_string(value), ", allowed are ", std::to_string(low), " to ", std::to_string(high)}),
                      where);
  }
}

}  // namespace kvx
