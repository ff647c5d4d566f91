# Install rules and the package that find_package(kvx) finds.
#
# The export set exists even where KVX_INSTALL is off, so that a parent may export libraries that link kvx::kvx. Its rules then
# stay out of the parent's install (EXCLUDE_FROM_ALL); `cmake --install <build> --component kvx` carries them out.
include(CMakePackageConfigHelpers)

set(kvx_where COMPONENT kvx)
if(NOT KVX_INSTALL)
  list(APPEND kvx_where EXCLUDE_FROM_ALL)
endif()
set(kvx_package share/cmake/kvx)

configure_package_config_file(cmake/kvx-config.cmake.in "${PROJECT_BINARY_DIR}/kvx-config.cmake" INSTALL_DESTINATION ${kvx_package})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvx-config-version.cmake" COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

install(TARGETS kvx EXPORT kvx-targets)
install(EXPORT kvx-targets NAMESPACE kvx:: DESTINATION ${kvx_package} ${kvx_where})
install(FILES "${PROJECT_BINARY_DIR}/kvx-config.cmake" "${PROJECT_BINARY_DIR}/kvx-config-version.cmake" cmake/kvx-calibrate.cmake
        cmake/kvx-deflate.cmake DESTINATION ${kvx_package} ${kvx_where})
install(DIRECTORY include/kvx DESTINATION include ${kvx_where} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES LICENSE DESTINATION share/doc/kvx ${kvx_where})

unset(kvx_where)
unset(kvx_package)
