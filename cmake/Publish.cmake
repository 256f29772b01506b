# What a library needs besides its code to be used from outside: a shared twin, names, export sets.

# kvb_publish(TARGET NAME ...): TARGET is a static library; NAME is how it is called outside, such as
# "server" for kvbell::server.
#   OUTPUT   file name without "lib"
#   MAP      version script: all that the shared library exports
#   LIBS     what the code is linked with
#   PACKAGED the same for users of the installed archive: a target that kvbellConfig.cmake makes
# The objects of TARGET are compiled once, and TARGET contains those of kvb_shm, so that one archive is enough. Flags
# of ours stay PRIVATE: nobody outside gets our warnings.
function(kvb_publish target name)
  cmake_parse_arguments(arg "" "OUTPUT;MAP;PACKAGED" "LIBS" ${ARGN})
  set(shared ${target}_shared)
  set(map ${CMAKE_CURRENT_SOURCE_DIR}/${arg_MAP})

  add_library(${shared} SHARED $<TARGET_OBJECTS:${target}>)
  # Hidden in libraries only: in programs it would keep argp_program_version from glibc.
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_OUTPUT} EXPORT_NAME ${name}_static
    C_VISIBILITY_PRESET hidden)
  set_target_properties(${shared} PROPERTIES OUTPUT_NAME ${arg_OUTPUT} EXPORT_NAME ${name}
    LINKER_LANGUAGE C VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map})
  target_link_options(${shared} PRIVATE -Wl,--version-script=${map})
  if(KVBELL_SANITIZE STREQUAL "none")
    # Sanitizers leave their functions to the program.
    target_link_options(${shared} PRIVATE -Wl,-z,defs)
  endif()
  target_link_libraries(${target} PRIVATE $<INSTALL_INTERFACE:${arg_PACKAGED}>)
  foreach(library IN ITEMS ${target} ${shared})
    foreach(needed IN ITEMS kvb_build kvb_shm ${arg_LIBS})
      target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:${needed}>)
    endforeach()
    target_include_directories(${library} INTERFACE
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  target_link_libraries(${target} PRIVATE Threads::Threads m)

  # In the tree, by the names that users know.
  add_library(kvbell::${name} ALIAS ${shared})
  add_library(kvbell::${name}_static ALIAS ${target})

  if(KVBELL_INSTALL)
    # Two sets, since only the static libraries make a user look for what they are linked with.
    install(TARGETS ${shared} EXPORT kvbell-shared
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(TARGETS ${target} EXPORT kvbell-static
      ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endfunction()
