# Names a missing or too old compiler, or a system that is not Linux, before anything else can fail over it.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "Spillway runs on Linux only (io_uring, O_DIRECT); this is ${CMAKE_SYSTEM_NAME}")
endif()

if(NOT CMAKE_CXX_COMPILER)
  unset(CMAKE_CXX_COMPILER CACHE)  # an earlier "not found" must not outlive the installation of one
endif()
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(FATAL_ERROR "Spillway needs a C++20 compiler, which was not found. On Debian:\n  apt-get install g++")
endif()
enable_language(CXX)

set(SPILLWAY_OLDEST_GNU 12)
set(SPILLWAY_OLDEST_Clang 16)
set(oldest ${SPILLWAY_OLDEST_${CMAKE_CXX_COMPILER_ID}})
if(oldest AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS oldest)
  message(FATAL_ERROR "Spillway needs ${CMAKE_CXX_COMPILER_ID} ${oldest} or newer; ${CMAKE_CXX_COMPILER} is "
                      "${CMAKE_CXX_COMPILER_VERSION}. Another one can be given by the environment variable CXX")
endif()
