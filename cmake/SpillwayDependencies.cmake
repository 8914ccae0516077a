# What the engine needs from the system. A missing one is named with the Debian package that brings it.
function(spillway_missing what package)
  message(FATAL_ERROR "Spillway needs ${what}, which was not found. On Debian:\n  apt-get install ${package}")
endfunction()

# Headers and libraries that `make gpu-bundle` has packed for a machine without packages.
set(SPILLWAY_BUNDLE "" CACHE PATH "the folder that make gpu-bundle has packed; empty: the system's packages")
if(SPILLWAY_BUNDLE)
  list(APPEND CMAKE_PREFIX_PATH "${SPILLWAY_BUNDLE}")
  if(NOT CMAKE_LIBRARY_ARCHITECTURE)  # a system that is not Debian's: the bundle's folders are
    file(GLOB architectures RELATIVE "${SPILLWAY_BUNDLE}/lib" "${SPILLWAY_BUNDLE}/lib/*-linux-gnu")
    if(architectures)
      list(GET architectures 0 CMAKE_LIBRARY_ARCHITECTURE)
    endif()
  endif()
endif()

find_package(Threads REQUIRED)

find_package(hwy 1.0.3 CONFIG QUIET)
if(NOT hwy_FOUND)
  spillway_missing("Google Highway (hwy) 1.0.3 or newer" libhwy-dev)
endif()

# What may be missing, for a machine where nothing can be installed.
function(spillway_without what package consequence)
  message(WARNING "${what} was not found (on Debian: apt-get install ${package}): ${consequence}")
endfunction()

# spillway_optional(NAME HEADER LIBRARY): target spillway_NAME, and SPILLWAY_<NAME>=1 among SPILLWAY_PRESENT when it is there.
function(spillway_optional name header library)
  string(TOUPPER ${name} upper)
  find_path(${upper}_INCLUDE_DIR ${header})
  find_library(${upper}_LIBRARY ${library})
  add_library(spillway_${name} INTERFACE)
  if(${upper}_INCLUDE_DIR AND ${upper}_LIBRARY)
    target_include_directories(spillway_${name} SYSTEM INTERFACE ${${upper}_INCLUDE_DIR})
    target_link_libraries(spillway_${name} INTERFACE ${${upper}_LIBRARY})
    set(SPILLWAY_PRESENT ${SPILLWAY_PRESENT} SPILLWAY_${upper}=1 PARENT_SCOPE)
  endif()
endfunction()

spillway_optional(uring liburing.h uring)
if(NOT URING_INCLUDE_DIR OR NOT URING_LIBRARY)
  spillway_without(liburing liburing-dev "storage paths are served by threads, which takes more of the CPUs")
endif()
spillway_optional(blkid blkid/blkid.h blkid)
if(NOT BLKID_INCLUDE_DIR OR NOT BLKID_LIBRARY)
  spillway_without(libblkid libblkid-dev "raw block devices are refused as storage paths")
endif()

find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  spillway_missing("xxHash" libxxhash-dev)
endif()
add_library(spillway_xxhash INTERFACE)
target_include_directories(spillway_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})

find_package(nlohmann_json 3.10 CONFIG QUIET)
if(NOT nlohmann_json_FOUND)
  spillway_missing("nlohmann/json" nlohmann-json3-dev)
endif()

if(SPILLWAY_TESTS)
  find_package(GTest CONFIG QUIET)
  if(NOT GTest_FOUND)
    spillway_missing("GoogleTest" libgtest-dev)
  endif()
endif()
