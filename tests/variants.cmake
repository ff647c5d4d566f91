# The same suite from other builds: compilers, sanitizers, instruction sets. Each build is a preset of CMakePresets.json, made inside ctest.
#
# <preset>/build configures and builds; <preset>/<program> then runs each test program of that build once, all its cases.
# kvx_variant(<preset> [<program>...]): these programs alone; the examples are built where all are. The first build under address and undefined
# behaviour sanitizers compiles the device tests for the simulator too.
get_property(programs GLOBAL PROPERTY KVX_TEST_PROGRAMS)
get_property(threaded GLOBAL PROPERTY KVX_THREADED_TEST_PROGRAMS)
list(FILTER programs EXCLUDE REGEX "test_bench$")  # the benches' own arithmetic needs the benches, which these builds do without
include(ProcessorCount)
ProcessorCount(cores)
math(EXPR cores "(${cores} + 1) / 2")  # of one build: two go on side by side, and neither leaves a core idle at its end

# Random operations of one run of the tests that play a cache against its model: 10,000 in the build above, fewer where they are slow.
set(operations 1000)
set(limit 900)  # seconds of one program
set(some some)  # of the device tests
if(matrix GREATER_EQUAL 3)
  set(operations 10000)
  set(limit 2700)
  set(some all)
endif()

function(kvx_variant preset)
  set(examples ${KVX_BUILD_EXAMPLES})
  if(ARGN)
    set(programs ${ARGN})
    set(examples OFF)
  endif()
  set(folder "${PROJECT_BINARY_DIR}/variants/${preset}")
  list(TRANSFORM programs REPLACE ".*/" "" OUTPUT_VARIABLE targets)
  set(device none)
  if(COMMAND kvx_simt_device_runs AND preset STREQUAL first_asan)
    set(device ${some})
    list(APPEND targets test_device)
    kvx_simt_device_runs(address "${folder}/tests/simt/test_device" ${preset} ${some} seed0 seed1 seed2 seed3 lazy)
  endif()
  list(JOIN targets "," targets)
  add_test(NAME ${preset}/build COMMAND "${CMAKE_COMMAND}" -D preset=${preset} -D "folder=${folder}" -D cores=${cores} -D examples=${examples}
                                        -D targets=${targets} -D device=${device} -D "cuda_headers=${KVX_CUDA_HEADERS}"
                                        -D "launcher=${CMAKE_CXX_COMPILER_LAUNCHER}" -P "${PROJECT_SOURCE_DIR}/cmake/checks/build_preset.cmake")
  set_tests_properties(${preset}/build PROPERTIES WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" FIXTURES_SETUP ${preset} PROCESSORS ${cores} LABELS variant
                                                  COST 1000 TIMEOUT 1500)
  set(sweeps "")
  if(preset MATCHES "^tsan" AND matrix LESS 3)  # sweeps of attention on one thread, beside cases that start some
    set(sweeps "--test-case-exclude=what is attended to is *,keep covers the zone*,every length around *")
  elseif(preset MATCHES "^asan" AND matrix LESS 3)  # minutes of products that Eigen or short cases do as well
    set(sweeps "--test-case-exclude=perplexity of *,sampled components hold *,a basis of many directions *")
  endif()
  foreach(program IN LISTS programs)
    cmake_path(GET program FILENAME name)
    string(REGEX REPLACE "^test_" "" name "${name}")
    set(fuzz_seconds 1)
    if(preset STREQUAL "asan")  # where every read out of bounds shows: files that people download for a minute, streams for a third
      set(fuzz_seconds 20)
      if(name STREQUAL "decode_loop")
        set(fuzz_seconds 60)
      endif()
    endif()
    add_test(NAME ${preset}/${name} COMMAND "${CMAKE_COMMAND}" -E env "${folder}/${program}" ${sweeps})  # it exists once <preset>/build has run
    set_tests_properties(${preset}/${name} PROPERTIES FIXTURES_REQUIRED ${preset} LABELS variant COST 100 TIMEOUT ${limit}
                                                      ENVIRONMENT "KVX_TEST_OPERATIONS=${operations};KVX_FUZZ_SECONDS=${fuzz_seconds}")
  endforeach()
endfunction()

if(KVX_CLANGXX)
  set(first_asan asan)  # clang takes half the time
  kvx_variant(asan)
else()
  set(first_asan asan-gcc)
  kvx_left_out(asan clang++)
endif()
if(NOT KVX_CLANGXX OR matrix GREATER_EQUAL 3)
  kvx_variant(asan-gcc)
endif()
kvx_variant(tsan ${threaded})
if(matrix GREATER_EQUAL 3)
  if(KVX_CLANGXX)
    kvx_variant(clang)
    kvx_variant(tsan-clang ${threaded})
  endif()
  foreach(preset debug release native)
    kvx_variant(${preset})
  endforeach()
endif()

# Every instruction set this machine has below its best, forced by the environment; the build above runs the best one.
set(levels baseline)
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo flags REGEX "^flags" LIMIT_COUNT 1)
  if(flags MATCHES " avx2 " AND flags MATCHES " fma " AND flags MATCHES " f16c ")
    list(APPEND levels avx2)
  endif()
  if(flags MATCHES " avx512f " AND flags MATCHES " avx512bw " AND flags MATCHES " avx512vl ")
    list(APPEND levels avx512)
  endif()
endif()
set(lower ${levels})
list(POP_BACK lower)
foreach(level IN LISTS lower)
  foreach(program IN LISTS programs)
    cmake_path(GET program FILENAME name)
    string(REGEX REPLACE "^test_" "" stem "${name}")
    add_test(NAME ${level}/${stem} COMMAND ${name})
    set_tests_properties(${level}/${stem} PROPERTIES LABELS variant TIMEOUT ${limit}
                                                      ENVIRONMENT "KVX_SIMD=${level};KVX_TEST_OPERATIONS=${operations};KVX_FUZZ_SECONDS=1")
  endforeach()
endforeach()

# Tests that lean on each other show it in another order.
if(matrix GREATER_EQUAL 3)
  foreach(seed 1 2 3)
    foreach(program IN LISTS programs)
      cmake_path(GET program FILENAME name)
      string(REGEX REPLACE "^test_" "" stem "${name}")
      add_test(NAME order${seed}/${stem} COMMAND ${name} --order-by=rand --rand-seed=${seed})
      set_tests_properties(order${seed}/${stem} PROPERTIES LABELS variant TIMEOUT ${limit} ENVIRONMENT KVX_TEST_OPERATIONS=1000)
    endforeach()
  endforeach()
endif()

# The integer stages print what they decided; every compiler, flag and instruction set must print the same.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/bits/*.cpp")
string(REPLACE ";" "," level_list "${levels}")
set(builds "g++ -O0" "g++ -O3 -march=native" "g++ -O2 -ffp-contract=off")
if(KVX_CLANGXX)
  list(APPEND builds "clang++ -O2")
  if(matrix GREATER_EQUAL 3)
    list(APPEND builds "clang++ -O0" "clang++ -O3 -march=native -ffp-contract=fast")
  endif()
endif()
kvx_check(bits "${Python3_EXECUTABLE}" "${checks}/same_bits.py" "${PROJECT_SOURCE_DIR}/include" ${level_list} ${sources} -- ${builds})
set_tests_properties(check/bits PROPERTIES COST 500)
