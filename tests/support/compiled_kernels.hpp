#pragma once
// What takes a compiler long is compiled once (compiled_kernels.cpp), not in every unit of every test program: the inner kernels, and the
// codebooks of 7 bits. tests/CMakeLists.txt includes this before the first line of a unit.

#include <kvx/backend/simd/dispatch.hpp>

#include <vector>

namespace kvx::test {

template <int Bits>
void copy_codebook(int width, std::vector<float>& levels, std::vector<float>& squared_thresholds);
extern template void copy_codebook<7>(int width, std::vector<float>& levels, std::vector<float>& squared_thresholds);

}  // namespace kvx::test

namespace kvx::simd {

extern template const kernel_table& table_of<kernel_table>(instruction_set);
extern template const encode_table& table_of<encode_table>(instruction_set);
extern template const rerank_table& table_of<rerank_table>(instruction_set);
extern template const scan_table& table_of<scan_table>(instruction_set);
extern template const page_table& table_of<page_table>(instruction_set);

extern template const row_kernels<float>& kernel_table::rows<float>() const;
extern template const row_kernels<half>& kernel_table::rows<half>() const;
extern template const row_kernels<bf16>& kernel_table::rows<bf16>() const;
extern template const row_conversions<float>& kernel_table::conversions<float>() const;
extern template const row_conversions<half>& kernel_table::conversions<half>() const;
extern template const row_conversions<bf16>& kernel_table::conversions<bf16>() const;
extern template const mean_functions<float>& encode_table::means<float>() const;
extern template const mean_functions<half>& encode_table::means<half>() const;
extern template const mean_functions<bf16>& encode_table::means<bf16>() const;
extern template encode_function<float> encode_table::encode<float, 0>() const;
extern template encode_function<float> encode_table::encode<float, 1>() const;
extern template encode_function<float> encode_table::encode<float, 3>() const;
extern template encode_function<float> encode_table::encode<float, 7>() const;
extern template encode_function<half> encode_table::encode<half, 0>() const;
extern template encode_function<half> encode_table::encode<half, 1>() const;
extern template encode_function<half> encode_table::encode<half, 3>() const;
extern template encode_function<half> encode_table::encode<half, 7>() const;
extern template encode_function<bf16> encode_table::encode<bf16, 0>() const;
extern template encode_function<bf16> encode_table::encode<bf16, 1>() const;
extern template encode_function<bf16> encode_table::encode<bf16, 3>() const;
extern template encode_function<bf16> encode_table::encode<bf16, 7>() const;
extern template code_function rerank_table::code_sums<1>() const;
extern template code_function rerank_table::code_sums<3>() const;
extern template code_function rerank_table::code_sums<7>() const;
extern template value_function value_sums_of<2>(instruction_set);
extern template value_function value_sums_of<4>(instruction_set);

}  // namespace kvx::simd
