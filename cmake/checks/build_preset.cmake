# Configures a preset into a folder of the caller's and builds the targets, names with commas between them:
# cmake -D preset= -D folder= -D cores= -D examples= -D targets= -D device= [-D cuda_headers=] [-D launcher=] -P build_preset.cmake
string(REPLACE "," ";" targets "${targets}")
set(batches ON)
if(preset STREQUAL "debug")
  set(batches OFF)  # every source alone, so that each is seen to include what it uses
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --preset ${preset} -B "${folder}" -D KVX_TEST_MATRIX=unit -D KVX_TEST_BATCHES=${batches} -D KVX_BUILD_BENCH=OFF -D KVX_BUILD_EXAMPLES=${examples}
                        -D KVX_DEVICE_TESTS=${device} -D "KVX_CUDA_HEADERS=${cuda_headers}"
                        -D "CMAKE_CXX_COMPILER_LAUNCHER=${launcher}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${folder}" -j ${cores} --target ${targets} COMMAND_ERROR_IS_FATAL ANY)
