#pragma once
// Files from outside: read whole, and refused with one line that names the file and the place.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace decode_loop {

/// What a file that cannot be used throws: one line, "<path>: <place>: <what is wrong>".
struct file_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// All bytes of a regular file.
///
/// errors      file_error where it is missing, no regular file, empty or unreadable
std::vector<std::byte> read_file(const std::string& path);

}  // namespace decode_loop
