# Plays one consumer from configure to run: cmake -D kind= -D source= -D folder= -D compiler= -P run.cmake
#   kind      a function below; source  kvx's root; folder  where to build, emptied first; compiler  the consumer's C++ compiler
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${folder}")
set(projects "${source}/tests/consumer")

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(configure project build)
  run("${CMAKE_COMMAND}" -G Ninja -S "${projects}/${project}" -B "${build}" -D "CMAKE_CXX_COMPILER=${compiler}" -D CMAKE_BUILD_TYPE=Debug ${ARGN})
endfunction()

# Configures, builds and runs a project that makes the program `consumer`.
function(play project build)
  configure(${project} "${build}" ${ARGN})
  run("${CMAKE_COMMAND}" --build "${build}")
  run("${build}/consumer")
endfunction()

# Installs kvx from a build of nothing else.
function(install_kvx kvx prefix)
  run("${CMAKE_COMMAND}" -G Ninja -S "${kvx}" -B "${folder}/kvx" -D "CMAKE_INSTALL_PREFIX=${prefix}" -D KVX_BUILD_TESTS=OFF -D KVX_BUILD_EXAMPLES=OFF
      -D KVX_BUILD_BENCH=OFF)
  run("${CMAKE_COMMAND}" --install "${folder}/kvx")
endfunction()

# Whatever the parent installs without naming a component, and its tests, must be its own.
function(demand_own_install_and_tests build prefix)
  run("${CMAKE_COMMAND}" --install "${build}" --prefix "${prefix}")
  file(GLOB_RECURSE installed RELATIVE "${prefix}" "${prefix}/*")
  list(FILTER installed INCLUDE REGEX "kvx")
  if(installed)
    message(FATAL_ERROR "kvx installs itself with its parent: ${installed}")
  endif()
  execute_process(COMMAND "${CMAKE_CTEST_COMMAND}" --test-dir "${build}" -N OUTPUT_VARIABLE tests ERROR_VARIABLE tests)
  if(tests MATCHES "Test +#")
    message(FATAL_ERROR "kvx gives its parent tests:\n${tests}")
  endif()
endfunction()

function(fetch_content)
  play(fetch_content "${folder}/build" -D "KVX_SOURCE=${source}")
  file(GLOB_RECURSE object "${folder}/build/*other.cpp.o")
  execute_process(COMMAND nm "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  if(NOT symbols MATCHES "10engine_kvx" OR symbols MATCHES "[^0-9]3kvx[^ \n]*")
    message(FATAL_ERROR "kvx under another name has a symbol of its own: ${CMAKE_MATCH_0}")
  endif()
  demand_own_install_and_tests("${folder}/build" "${folder}/prefix")
endfunction()

function(add_subdirectory)
  play(add_subdirectory "${folder}/build" -D "KVX_SOURCE=${source}")
  demand_own_install_and_tests("${folder}/build" "${folder}/prefix")
  run("${CMAKE_COMMAND}" --install "${folder}/build" --prefix "${folder}/prefix" --component kvx)   # who asks for it gets it
  play(installed "${folder}/again" -D "CMAKE_PREFIX_PATH=${folder}/prefix")
endfunction()

function(installed)
  install_kvx("${source}" "${folder}/prefix")
  play(installed "${folder}/build" -D "CMAKE_PREFIX_PATH=${folder}/prefix")
  play(installed "${folder}/without_openmp" -D "CMAKE_PREFIX_PATH=${folder}/prefix" -D KVX_OPENMP=OFF)
endfunction()

function(exporting)
  configure(exporting "${folder}/quiet" -D "KVX_SOURCE=${source}")                                  # KVX_INSTALL off: the export still works
  run("${CMAKE_COMMAND}" --build "${folder}/quiet")
  demand_own_install_and_tests("${folder}/quiet" "${folder}/quiet_prefix")
  install_kvx("${source}" "${folder}/kvx_prefix")
  play(exporting_user "${folder}/user" -D "engine_ROOT=${folder}/quiet_prefix" -D "kvx_ROOT=${folder}/kvx_prefix")

  configure(exporting "${folder}/build" -D "KVX_SOURCE=${source}" -D KVX_INSTALL=ON)                # on: one prefix holds both
  run("${CMAKE_COMMAND}" --build "${folder}/build")
  run("${CMAKE_COMMAND}" --install "${folder}/build" --prefix "${folder}/prefix")
  play(exporting_user "${folder}/user_of_both" -D "CMAKE_PREFIX_PATH=${folder}/prefix")
endfunction()

function(spaces)
  set(kvx "${folder}/a path with spaces/kvx")
  foreach(part include cmake tests/consumer CMakeLists.txt LICENSE)
    cmake_path(GET part PARENT_PATH parent)
    file(COPY "${source}/${part}" DESTINATION "${kvx}/${parent}")
  endforeach()
  set(projects "${kvx}/tests/consumer")
  play(add_subdirectory "${folder}/a path with spaces/build" -D "KVX_SOURCE=${kvx}")
  install_kvx("${kvx}" "${folder}/a path with spaces/prefix")
  play(installed "${folder}/a path with spaces/again" -D "CMAKE_PREFIX_PATH=${folder}/a path with spaces/prefix")
endfunction()

# No toolkit on the path, and no header of one among those that a translation unit reads.
function(cpu_only)
  set(ENV{PATH} "/usr/bin:/bin")
  foreach(variable CUDACXX CUDA_PATH CUDA_HOME CPATH CPLUS_INCLUDE_PATH)
    unset(ENV{${variable}})
  endforeach()
  install_kvx("${source}" "${folder}/prefix")
  play(installed "${folder}/build" -D "CMAKE_PREFIX_PATH=${folder}/prefix" -D CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
  execute_process(COMMAND "${compiler}" -std=c++20 -M "-I${folder}/prefix/include" "${projects}/program/main.cpp" OUTPUT_VARIABLE headers
                  COMMAND_ERROR_IS_FATAL ANY)
  if(headers MATCHES "[^ ]*(cuda|/cub/|/thrust/)[^ ]*")
    message(FATAL_ERROR "a host program reads ${CMAKE_MATCH_0}")
  endif()
endfunction()

cmake_language(CALL ${kind})
