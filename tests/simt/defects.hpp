#pragma once
// Which defect a program runs with that holds several (mutants.py): SIMT_DEFECT is its number.

#include <cstdlib>
#include <type_traits>

namespace simt {

inline const int defect = [] {
  const char* text = std::getenv("SIMT_DEFECT");
  return text != nullptr ? std::atoi(text) : 0;
}();

/// Never while compiling: tables hold no defect.
constexpr bool has_defect(int number) { return !std::is_constant_evaluated() && defect == number; }

}  // namespace simt
