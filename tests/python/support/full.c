/* Preloaded by tests: a file whose path has FULL_PLACE and FULL_PART (or FULL_ALSO) in it cannot be made, as on a file
 * system that has no room. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int full(const char* path, int flags) {
  const char* of = getenv("FULL_PLACE");
  const char* part = getenv("FULL_PART");
  if (of == NULL || part == NULL || (flags & O_CREAT) == 0) return 0;
  const char* also = getenv("FULL_ALSO");
  if (strstr(path, of) == NULL) return 0;
  return strstr(path, part) != NULL || (also != NULL && strstr(path, also) != NULL);
}

#define OPEN(name)                                              \
  int name(const char* path, int flags, ...) {                  \
    va_list rest;                                               \
    va_start(rest, flags);                                      \
    int mode = va_arg(rest, int);                               \
    va_end(rest);                                               \
    if (full(path, flags)) {                                    \
      errno = ENOSPC;                                           \
      return -1;                                                \
    }                                                           \
    int (*next)(const char*, int, ...) = dlsym(RTLD_NEXT, #name); \
    return next(path, flags, mode);                             \
  }

OPEN(open)
OPEN(open64)
