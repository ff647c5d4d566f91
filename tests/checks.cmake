# Checks of the text and of what the compilers refuse, each one ctest test. A tool that is missing leaves its test out, visibly.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(checks "${PROJECT_SOURCE_DIR}/cmake/checks")
set(strict -std=c++20 -Wall -Wextra -Wshadow -Wconversion -Werror)

# kvx_check(<name> <command>...)
function(kvx_check name)
  add_test(NAME check/${name} COMMAND ${ARGN} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(check/${name} PROPERTIES LABELS check TIMEOUT 600 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()

# kvx_left_out(<name> <tool>): a test that ctest lists as skipped, with its reason.
function(kvx_left_out name tool)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "left out: ${tool} is missing")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "left out")
endfunction()

set(KVX_CUDA AUTO CACHE STRING "Checks that need CUDA: AUTO (where there is a toolkit), ON (fail without one), OFF")
find_program(KVX_GXX NAMES g++-12 g++)
find_program(KVX_CLANGXX NAMES clang++-14 clang++)
find_program(KVX_NVCC nvcc HINTS /usr/local/cuda/bin "$ENV{CUDA_PATH}/bin")
find_program(KVX_CLANG_FORMAT NAMES clang-format-16 clang-format-17 clang-format-18 clang-format)
find_program(KVX_CLANG_TIDY NAMES clang-tidy-14 clang-tidy)

kvx_check(self_test "${Python3_EXECUTABLE}" "${checks}/self_test.py")
kvx_check(include_levels "${Python3_EXECUTABLE}" "${checks}/include_levels.py" "${PROJECT_SOURCE_DIR}")
kvx_check(quoted_programs "${Python3_EXECUTABLE}" "${checks}/quoted_programs.py" "${PROJECT_SOURCE_DIR}")
kvx_check(text_rules "${Python3_EXECUTABLE}" "${checks}/text_rules.py" "${PROJECT_SOURCE_DIR}")

if(KVX_CLANG_FORMAT)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/*" "${PROJECT_SOURCE_DIR}/tests/*" "${PROJECT_SOURCE_DIR}/examples/*"
       "${PROJECT_SOURCE_DIR}/bench/*")
  list(FILTER sources INCLUDE REGEX "\\.(hpp|cpp|cuh|cu)$")
  kvx_check(format "${KVX_CLANG_FORMAT}" --dry-run -Werror ${sources})
  add_custom_target(format COMMAND "${KVX_CLANG_FORMAT}" -i ${sources} VERBATIM)  # cmake --build build/default --target format
else()
  kvx_left_out(check/format clang-format)
endif()

# Some headers are for those who have Eigen or libdeflate: whoever checks headers has both.
kvx_dependency(Eigen3 https://gitlab.com/libeigen/eigen.git 3.4.0 EIGEN_BUILD_DOC=OFF BUILD_TESTING=OFF)
set(names g++ clang++)
set(compilers KVX_GXX KVX_CLANGXX)
foreach(name compiler IN ZIP_LISTS names compilers)
  if(${compiler})
    if(matrix GREATER_EQUAL 3)  # minutes
      kvx_check(headers_alone/${name} "${Python3_EXECUTABLE}" "${checks}/compile_alone.py" "${PROJECT_SOURCE_DIR}" 1 .hpp
                "${${compiler}}" ${strict} "-isystem$<TARGET_PROPERTY:Eigen3::Eigen,INTERFACE_INCLUDE_DIRECTORIES>" -fsyntax-only)
    endif()
    kvx_check(refused/${name} "${Python3_EXECUTABLE}" "${checks}/compile_fail.py" "${PROJECT_SOURCE_DIR}/tests/compile_fail"
              "${${compiler}}" ${strict} "-I${PROJECT_SOURCE_DIR}/include" -fsyntax-only)
  else()
    kvx_left_out(check/headers_alone/${name} ${name})
    kvx_left_out(check/refused/${name} ${name})
  endif()
endforeach()

# What a reader of the sources would find by thinking: one unit that instantiates the library.
if(matrix LESS 2)
  message(STATUS "kvx: clang-tidy and nvcc are left to a whole run")
elseif(KVX_CLANG_TIDY)
  kvx_check(tidy "${KVX_CLANG_TIDY}" --quiet "${PROJECT_SOURCE_DIR}/tests/consumer/program/main.cpp" -- -std=c++20 "-I${PROJECT_SOURCE_DIR}/include")
else()
  kvx_left_out(check/tidy clang-tidy)
endif()

# Device code needs nvcc and no GPU: every .cuh alone, the shared cores from a kernel, and no kernel spills. CMake's own CUDA language stays
# out of it, so that CMake 3.25, which knows no C++20 for CUDA, needs no persuasion.
if(KVX_CUDA STREQUAL "ON" AND NOT KVX_NVCC)
  message(FATAL_ERROR "KVX_CUDA is ON, and there is no nvcc")
elseif(KVX_NVCC AND NOT KVX_CUDA STREQUAL "OFF")
  set(nvcc "${KVX_NVCC}" -std=c++20 -Werror=all-warnings -Xcudafe --display_error_number)
  set(both -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -Xcompiler=-Wall,-Wextra,-Werror)
  set(folders "-I${PROJECT_SOURCE_DIR}/include" "-I${PROJECT_SOURCE_DIR}/tests")
  set(resources "${Python3_EXECUTABLE}" "${checks}/kernel_resources.py" "${PROJECT_SOURCE_DIR}")
  file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/device/*.cu" "${PROJECT_SOURCE_DIR}/bench/cuda/*.cu")
  list(FILTER kernels EXCLUDE REGEX "/shared_cores\\.cu$")  # its kernel is none of the library's
  # cmake --build build/default --target kernel_resources: every kernel of tests and benches, half an hour
  add_custom_target(kernel_resources COMMAND ${resources} 2 ${kernels} -- ${nvcc} ${both} ${folders} VERBATIM USES_TERMINAL)
  if(matrix GREATER_EQUAL 2)
    kvx_check(nvcc/shared_cores ${nvcc} ${both} ${folders} -c -o /dev/null "${PROJECT_SOURCE_DIR}/tests/device/shared_cores.cu")
    set(alone "${Python3_EXECUTABLE}" "${checks}/compile_alone.py" "${PROJECT_SOURCE_DIR}" 1 .cuh ${nvcc})
  endif()
  if(matrix GREATER_EQUAL 3)
    kvx_check(nvcc/headers_alone ${alone} ${both} -c -o /dev/null)
    kvx_check(nvcc/kernel_resources ${resources} 2 ${kernels} -- ${nvcc} ${both} ${folders})
    set_tests_properties(check/nvcc/headers_alone check/nvcc/kernel_resources PROPERTIES TIMEOUT 7200)
  elseif(matrix EQUAL 2)  # one architecture of the cache with our defaults
    kvx_check(nvcc/kernel_resources ${resources} 1 bench/cuda/retrieval.cu -- ${nvcc} -arch=sm_90 -Xcompiler=-Wall,-Wextra,-Werror ${folders})
    set_tests_properties(check/nvcc/kernel_resources PROPERTIES COST 500)  # what takes minutes begins first, and seconds fill the cores at the end
  endif()
elseif(matrix GREATER_EQUAL 2)
  kvx_left_out(check/nvcc "the CUDA toolkit")
endif()
