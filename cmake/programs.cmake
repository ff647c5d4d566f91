# What kvx's own programs (tests, examples, benches) share: warnings, dependencies, the functions that add them.
include(${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake)

add_library(kvx_program INTERFACE)
target_link_libraries(kvx_program INTERFACE kvx::kvx)
if(KVX_WARNINGS)
  target_compile_options(kvx_program INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror>")
endif()

# Debian's default build type is none at all, which measures and tests nothing that a user would run.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
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
