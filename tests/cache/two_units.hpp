#pragma once
// What two translation units of one program know of each other: each has a cache of a type that the other has not.

#include <kvx/layout/sequence_book.hpp>

#include <vector>

namespace two_units {

/// The first component of every key after a prompt, a fork and a cut, from the other unit's cache of floats.
std::vector<float> keys_of_the_other();

/// Its last handle.
kvx::sequence handle_of_the_other();

}  // namespace two_units
