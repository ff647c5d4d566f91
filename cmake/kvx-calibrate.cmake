# Defines kvx::calibrate, what include/kvx/calibrate and transform/eigen_product.hpp need, where Eigen is installed; used by the build and by
# find_package(kvx).
if(NOT TARGET kvx::calibrate)
  find_package(Eigen3 3.3 QUIET NO_MODULE)
  if(TARGET Eigen3::Eigen)
    add_library(kvx::calibrate INTERFACE IMPORTED GLOBAL)
    set_target_properties(kvx::calibrate PROPERTIES INTERFACE_LINK_LIBRARIES "kvx::kvx;Eigen3::Eigen")
  endif()
endif()
