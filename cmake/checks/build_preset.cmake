# Configures and builds one preset into a folder of the caller's:
# cmake -D preset= -D folder= -D cores= -D examples= [-D launcher=] -P build_preset.cmake
execute_process(COMMAND "${CMAKE_COMMAND}" --preset ${preset} -B "${folder}" -D KVX_TEST_MATRIX=unit -D KVX_BUILD_BENCH=OFF -D KVX_BUILD_EXAMPLES=${examples}
                        -D "CMAKE_CXX_COMPILER_LAUNCHER=${launcher}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${folder}" -j ${cores} COMMAND_ERROR_IS_FATAL ANY)
