# cmake --install: bin/qevict, the public headers, lib/libqevict.a (all rooms in one) with its CMake package, and, unless
# they are the system's, ggml and libllama under lib/qevict, so that the result needs nothing of this source tree.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/qevict")
set(bundle_dir "${CMAKE_INSTALL_LIBDIR}/qevict")

get_property(rooms GLOBAL PROPERTY QEVICT_ROOMS)
add_library(qevict STATIC)
foreach(room IN LISTS rooms)
  target_sources(qevict PRIVATE "$<TARGET_OBJECTS:${room}>")
endforeach()
set_target_properties(qevict PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(qevict INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(qevict INTERFACE cxx_std_20)
target_link_libraries(qevict INTERFACE llama ggml::ggml fmt::fmt PkgConfig::hwy_pc PkgConfig::utf8proc_pc
                                       Threads::Threads)

install(TARGETS qevict EXPORT qevict-targets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT qevict-targets NAMESPACE qevict:: DESTINATION "${package_dir}")
install(DIRECTORY include/qevict DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
install(TARGETS qevict_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

if(QEVICT_SYSTEM_LLAMA)
  set(QEVICT_BUNDLE "")
else()
  set(QEVICT_BUNDLE "${bundle_dir}")
  install(DIRECTORY "${QEVICT_DEPS}/prefix/include" DESTINATION "${bundle_dir}")
  install(DIRECTORY "${QEVICT_DEPS}/prefix/lib/" DESTINATION "${bundle_dir}/lib" PATTERN "pkgconfig" EXCLUDE)
  install(FILES "${QEVICT_DEPS}/common/LICENSE" DESTINATION "${bundle_dir}" RENAME LICENSE.llama.cpp OPTIONAL)
  set_target_properties(qevict_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${bundle_dir}/lib")
endif()
get_target_property(llama_common_libraries llama_common INTERFACE_LINK_LIBRARIES)
set(QEVICT_NEEDS_LLAMA_COMMON OFF)
if(llama_common_libraries)
  set(QEVICT_NEEDS_LLAMA_COMMON ON)
endif()

configure_package_config_file(cmake/qevict-config.cmake.in "${PROJECT_BINARY_DIR}/qevict-config.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/qevict-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/qevict-config.cmake" "${PROJECT_BINARY_DIR}/qevict-config-version.cmake"
        DESTINATION "${package_dir}")
