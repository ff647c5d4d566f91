# Third-party packages of the tests, examples and benches; kvx::kvx itself needs none.
#
# kvx_dependency(<package> <git url> <git tag> [<cache variable>=<value> ...]) takes an installed package first and a pinned
# source tree otherwise. With every package installed nothing touches the network.
include(FetchContent)

function(kvx_dependency package url tag)
  find_package(${package} QUIET)
  if(${package}_FOUND)
    return()
  endif()
  message(STATUS "kvx: ${package} is not installed, fetching ${tag}")
  foreach(setting IN LISTS ARGN)
    string(REGEX MATCH "^([^=]+)=(.*)$" _ "${setting}")
    set(${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" CACHE INTERNAL "chosen by kvx")
  endforeach()
  FetchContent_Declare(${package} GIT_REPOSITORY ${url} GIT_TAG ${tag} GIT_SHALLOW ON)
  FetchContent_MakeAvailable(${package})
endfunction()
