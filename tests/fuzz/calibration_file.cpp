// libFuzzer: calibration files. What is read is sound and writes the same file again; what is refused leaves things as they were.

#include <support/fuzz_mutator.hpp>
#include <support/sample_calibration.hpp>

#include <algorithm>
#include <cstdlib>

using namespace kvx;

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const auto plain = write_calibration(test::sample_calibration(false)), whole = write_calibration(test::sample_calibration(true));
  return test::mutate(data, size, most, seed, seed % 3 == 0 ? plain : whole, sizeof(calibration_file_header), test::mend_calibration);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  calibration c;
  if (!read_calibration(file, c).ok()) {
    if (!(c == calibration{})) std::abort();
    return 0;
  }
  if (!check_calibration(c).ok()) std::abort();
  const auto again = write_calibration(c);
  if (!std::equal(again.begin(), again.end(), file.begin(), file.end())) std::abort();
  return 0;
}
