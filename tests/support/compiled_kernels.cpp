// What compiled_kernels.hpp declares.

#include <support/key_code.hpp>

#include <kvx/backend/simd/dispatch.hpp>

#include <vector>

namespace kvx::test {

template void copy_codebook<7>(int width, std::vector<float>& levels, std::vector<float>& squared_thresholds);

}  // namespace kvx::test

namespace kvx::simd {

template const kernel_table& table_of<kernel_table>(instruction_set);
template const encode_table& table_of<encode_table>(instruction_set);
template const rerank_table& table_of<rerank_table>(instruction_set);
template const scan_table& table_of<scan_table>(instruction_set);
template const page_table& table_of<page_table>(instruction_set);

template const row_kernels<float>& kernel_table::rows<float>() const;
template const row_kernels<half>& kernel_table::rows<half>() const;
template const row_kernels<bf16>& kernel_table::rows<bf16>() const;
template const row_conversions<float>& kernel_table::conversions<float>() const;
template const row_conversions<half>& kernel_table::conversions<half>() const;
template const row_conversions<bf16>& kernel_table::conversions<bf16>() const;
template const mean_functions<float>& encode_table::means<float>() const;
template const mean_functions<half>& encode_table::means<half>() const;
template const mean_functions<bf16>& encode_table::means<bf16>() const;
template encode_function<float> encode_table::encode<float, 0>() const;
template encode_function<float> encode_table::encode<float, 1>() const;
template encode_function<float> encode_table::encode<float, 3>() const;
template encode_function<float> encode_table::encode<float, 7>() const;
template encode_function<half> encode_table::encode<half, 0>() const;
template encode_function<half> encode_table::encode<half, 1>() const;
template encode_function<half> encode_table::encode<half, 3>() const;
template encode_function<half> encode_table::encode<half, 7>() const;
template encode_function<bf16> encode_table::encode<bf16, 0>() const;
template encode_function<bf16> encode_table::encode<bf16, 1>() const;
template encode_function<bf16> encode_table::encode<bf16, 3>() const;
template encode_function<bf16> encode_table::encode<bf16, 7>() const;
template code_function rerank_table::code_sums<1>() const;
template code_function rerank_table::code_sums<3>() const;
template code_function rerank_table::code_sums<7>() const;
template value_function value_sums_of<2>(instruction_set);
template value_function value_sums_of<4>(instruction_set);

}  // namespace kvx::simd
