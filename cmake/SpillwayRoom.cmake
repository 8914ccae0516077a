# One static library per room; sources are every .cc file of the room's folder and the folders in it. Warnings are errors
# where the project itself is tested (.ci/run, the presets), and not where it is installed with a compiler of any age.
option(SPILLWAY_STRICT "warnings are errors" OFF)
add_library(spillway_options INTERFACE)
target_compile_options(spillway_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers $<$<BOOL:${SPILLWAY_STRICT}>:-Werror> -ffp-contract=off)
target_include_directories(spillway_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(spillway_options INTERFACE Threads::Threads)

# For wheels, which are to run on systems whose C++ library is older than the compiler's.
option(SPILLWAY_OLDER_LIBSTDCXX "ask libstdc++ for older symbols where there are some" OFF)
if(SPILLWAY_OLDER_LIBSTDCXX)
  target_compile_options(spillway_options INTERFACE -include "${PROJECT_SOURCE_DIR}/cmake/older_libstdcxx.h")
endif()

# A room's files are compiled several at a time, and so are its tests, since most of a compiler's work on one of them is
# the headers and what is instantiated of them: so names in the anonymous namespaces of one room, or of its tests, differ.
# OFF compiles each file by itself, which shows a missing include and is quicker after a change of one file.
option(SPILLWAY_UNITY "compile files of a room together, and the headers of the tests once" ON)
set(SPILLWAY_APART "" CACHE STRING "targets whose files are compiled each by itself all the same")
function(spillway_together target files)
  if("${target}" IN_LIST SPILLWAY_APART)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SPILLWAY_UNITY} UNITY_BUILD_BATCH_SIZE ${files})
  if(SPILLWAY_UNITY)  # GCC takes what is included for a header, in which a class must not hold a file's own types
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# spillway_room(NAME [rooms and libraries it uses...])
function(spillway_room name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*/*.cc)
  set(target spillway_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PRIVATE spillway_options)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${ARGN})
    spillway_together(${target} 20)
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${ARGN})
  endif()
endfunction()

# spillway_tests(ROOM [libraries...]): every tests/ROOM/*_test.cc, in one program `ROOM_test`.
function(spillway_tests room)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*_test.cc ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${room}_test ${sources})
  target_link_libraries(${room}_test PRIVATE ${ARGN} spillway_test_main test_options)
  spillway_together(${room}_test 20)
  if(SPILLWAY_UNITY)  # OFF shows a missing include
    target_precompile_headers(${room}_test REUSE_FROM test_headers)
  endif()
  include(GoogleTest)
  gtest_discover_tests(${room}_test TEST_PREFIX ${room}. DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${room})
endfunction()
