# What is installed besides programs and libraries: headers, pkg-config files, the CMake package.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/kvbell DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# pkg-config files find everything from where they are, so that the tree can be moved and `cmake --install --prefix`
# works. Directories given as absolute paths cannot move.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(kvb_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH kvb_pc_up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" kvb_pc_prefix "\${pcfiledir}/${kvb_pc_up}")
endif()
foreach(kind IN ITEMS LIB INCLUDE)
  set(kvb_pc_${kind}DIR "${CMAKE_INSTALL_${kind}DIR}")
  if(NOT IS_ABSOLUTE "${kvb_pc_${kind}DIR}")
    set(kvb_pc_${kind}DIR "\${prefix}/${kvb_pc_${kind}DIR}")
  endif()
endforeach()
foreach(name IN ITEMS kvbell kvbell-server)
  configure_file(cmake/${name}.pc.in cmake/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(kvb_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvbell)
configure_package_config_file(cmake/kvbellConfig.cmake.in cmake/kvbellConfig.cmake
  INSTALL_DESTINATION ${kvb_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/kvbellConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/kvbellConfig.cmake ${PROJECT_BINARY_DIR}/cmake/kvbellConfigVersion.cmake
  DESTINATION ${kvb_package_dir})
install(EXPORT kvbell-shared NAMESPACE kvbell:: FILE kvbell-shared.cmake DESTINATION ${kvb_package_dir})
install(EXPORT kvbell-static NAMESPACE kvbell:: FILE kvbell-static.cmake DESTINATION ${kvb_package_dir})
