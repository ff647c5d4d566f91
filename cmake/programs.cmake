# What kvx's own programs (tests, examples, benches) share: warnings, dependencies, and the functions that add them.
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)

# Without a build type CMake optimises nothing, which tests and measures what no user would run.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Every program of ours links this beside what it needs.
add_library(kvx_program INTERFACE)
target_link_libraries(kvx_program INTERFACE kvx::kvx)
if(KVX_WARNINGS)
  target_compile_options(kvx_program INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror>")
endif()

# kvx_subfolders(<out>): the folders beside the calling CMakeLists.txt that hold a CMakeLists.txt of their own.
function(kvx_subfolders out)
  file(GLOB lists CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt")
  set(folders "")
  foreach(list IN LISTS lists)
    cmake_path(GET list PARENT_PATH folder)
    list(APPEND folders "${folder}")
  endforeach()
  set(${out} "${folders}" PARENT_SCOPE)
endfunction()

# kvx_test_program(<name> <prefix> <source>...): one program of doctest cases, and one ctest test <prefix><source> for each source.
#
# A filter that matches nothing fails (tests/main.cpp). The program is recorded in the global property KVX_TEST_PROGRAMS, by its path
# below the build folder, so that tests/variants.cmake runs it again from other builds.
function(kvx_test_program name prefix)
  if(NOT TARGET kvx_test_main)
    kvx_dependency(doctest https://github.com/doctest/doctest v2.4.9)
    add_library(kvx_test_main OBJECT "${PROJECT_SOURCE_DIR}/tests/main.cpp")
    target_link_libraries(kvx_test_main PUBLIC kvx_program doctest::doctest)
  endif()
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE kvx_test_main kvx_program)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM stem)
    add_test(NAME ${prefix}${stem} COMMAND ${name} "--source-file=*/${stem}.cpp")
    set_tests_properties(${prefix}${stem} PROPERTIES TIMEOUT 300)
  endforeach()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_BINARY_DIR BASE_DIRECTORY "${PROJECT_BINARY_DIR}" OUTPUT_VARIABLE folder)
  set_property(GLOBAL APPEND PROPERTY KVX_TEST_PROGRAMS "${folder}/${name}")
endfunction()
