#include "file_error.hpp"

#include <filesystem>
#include <fstream>

namespace decode_loop {

std::vector<std::byte> read_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw file_error(path + ": no such file");
  if (!std::filesystem::is_regular_file(status)) throw file_error(path + ": not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw file_error(path + ": " + error.message());
  if (size == 0) throw file_error(path + ": the file is empty");

  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes(size);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) throw file_error(path + ": cannot be read");
  return bytes;
}

}  // namespace decode_loop
