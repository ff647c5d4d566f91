# Defines kvx::deflate, what codec/deflate.hpp needs, where libdeflate is installed; used by the build and by find_package(kvx).
#
# libdeflate has a CMake package from 1.15 on; Debian 12 has 1.14, so its header and library are looked for by hand.
if(NOT TARGET kvx::deflate)
  find_path(KVX_LIBDEFLATE_INCLUDE libdeflate.h)
  find_library(KVX_LIBDEFLATE_LIBRARY deflate)
  mark_as_advanced(KVX_LIBDEFLATE_INCLUDE KVX_LIBDEFLATE_LIBRARY)
  if(KVX_LIBDEFLATE_INCLUDE AND KVX_LIBDEFLATE_LIBRARY)
    add_library(kvx::deflate INTERFACE IMPORTED GLOBAL)
    set_target_properties(kvx::deflate PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${KVX_LIBDEFLATE_INCLUDE}"
                                                  INTERFACE_LINK_LIBRARIES "kvx::kvx;${KVX_LIBDEFLATE_LIBRARY}")
  endif()
endif()
