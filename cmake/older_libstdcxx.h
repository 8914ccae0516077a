// Included before every file of a wheel (SPILLWAY_OLDER_LIBSTDCXX): where the headers of GCC 12 ask its library for a newer
// symbol of the same function, the older one is asked for, which libraries since GCC 11, as of RHEL 9, have as well.
#pragma once
#include <cstddef>  // says which library it is

#if defined(__GLIBCXX__) && defined(__x86_64__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
