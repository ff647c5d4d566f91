# remember_parent() before kvx is added and demand_unchanged_parent() after it: a parent keeps its flags, options, tests and variables.

function(kvx_parent_state out)
  set(state "")
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FEATURES INCLUDE_DIRECTORIES LINK_OPTIONS LINK_LIBRARIES LINK_DIRECTORIES TESTS
                   BUILDSYSTEM_TARGETS)
    get_directory_property(value ${property})
    list(APPEND state "directory ${property} = ${value}")
  endforeach()
  get_cmake_property(languages ENABLED_LANGUAGES)
  list(APPEND state "languages = ${languages}")
  get_cmake_property(names VARIABLES)                                  # normal and cache variables alike
  foreach(name IN LISTS names)
    # kvx's own, and what project(), FetchContent, find_package(Threads) and find_package(OpenMP) remember wherever they are called
    if(NOT name MATCHES "^(KVX_|kvx_|CMAKE_PROJECT_VERSION|FETCHCONTENT_|FIND_PACKAGE_MESSAGE_DETAILS_|OpenMP_|CMAKE_HAVE_LIBC_PTHREAD|ARG[CNV0-9]|__|state$|out$|name)")
      list(APPEND state "${name} = ${${name}}")
    endif()
  endforeach()
  string(REPLACE ";" "\n" state "${state}")
  set(${out} "${state}" PARENT_SCOPE)
endfunction()

macro(remember_parent)
  kvx_parent_state(kvx_before)
endmacro()

macro(demand_unchanged_parent)
  kvx_parent_state(kvx_after)
  if(NOT kvx_before STREQUAL kvx_after)
    file(WRITE "${CMAKE_BINARY_DIR}/before.txt" "${kvx_before}\n")
    file(WRITE "${CMAKE_BINARY_DIR}/after.txt" "${kvx_after}\n")
    execute_process(COMMAND diff "${CMAKE_BINARY_DIR}/before.txt" "${CMAKE_BINARY_DIR}/after.txt" OUTPUT_VARIABLE kvx_difference)
    message(FATAL_ERROR "kvx changed its parent:\n${kvx_difference}")
  endif()
endmacro()
