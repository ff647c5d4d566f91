# The same suite from other builds: compilers, sanitizers, instruction sets. Each build is a preset of CMakePresets.json, made inside ctest.
#
# <preset>/build configures and builds; <preset>/<program> then runs each test program of that build once, all its cases.
get_property(programs GLOBAL PROPERTY KVX_TEST_PROGRAMS)
include(ProcessorCount)
ProcessorCount(cores)

function(kvx_variant preset)
  set(folder "${PROJECT_BINARY_DIR}/variants/${preset}")
  add_test(NAME ${preset}/build COMMAND "${CMAKE_COMMAND}" -D preset=${preset} -D "folder=${folder}" -D cores=${cores}
                                        -D "launcher=${CMAKE_CXX_COMPILER_LAUNCHER}" -P "${PROJECT_SOURCE_DIR}/cmake/checks/build_preset.cmake")
  set_tests_properties(${preset}/build PROPERTIES WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" FIXTURES_SETUP ${preset} RUN_SERIAL ON LABELS variant
                                                  TIMEOUT 1500)
  foreach(program IN LISTS programs)
    cmake_path(GET program FILENAME name)
    string(REGEX REPLACE "^test_" "" name "${name}")
    add_test(NAME ${preset}/${name} COMMAND "${folder}/${program}")
    set_tests_properties(${preset}/${name} PROPERTIES FIXTURES_REQUIRED ${preset} LABELS variant TIMEOUT 900)
  endforeach()
endfunction()

if(KVX_CLANGXX)
  kvx_variant(asan)
else()
  kvx_left_out(asan clang++)
endif()
kvx_variant(tsan)
if(matrix GREATER_EQUAL 3)
  foreach(preset debug release clang asan-gcc tsan-clang native)
    kvx_variant(${preset})
  endforeach()
endif()
