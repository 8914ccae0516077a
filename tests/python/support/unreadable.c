/* Preloaded by tests: reads of some bytes of some files fail with EIO, as those of a bad sector do.
 *
 * UNREADABLE holds lines "OFFSET BYTES FILE"; where it is set, io_uring, whose reads no library sees, is not there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int unreadable(int fd, size_t count, off_t offset) {
  if (getenv("UNREADABLE") == NULL) return 0;
  char link[64], file[PATH_MAX + 1];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, file, PATH_MAX);
  const char* line = getenv("UNREADABLE");
  if (length < 0) return 0;
  file[length] = 0;
  while (line != NULL && *line != 0) {
    long long first = 0, bytes = 0;
    int name = 0;
    const size_t all = strcspn(line, "\n");
    if (sscanf(line, "%lld %lld %n", &first, &bytes, &name) == 2 && all - (size_t)name == (size_t)length &&
        strncmp(line + name, file, (size_t)length) == 0 && offset < first + bytes &&
        first < offset + (long long)count) {
      return 1;
    }
    line += all + (line[all] == '\n');
  }
  return 0;
}

static ssize_t read_at(const char* name, int fd, void* into, size_t count, off_t offset) {
  ssize_t (*real)(int, void*, size_t, off_t);
  *(void**)&real = dlsym(RTLD_NEXT, name);
  if (!unreadable(fd, count, offset)) return real(fd, into, count, offset);
  errno = EIO;
  return -1;
}

ssize_t pread(int fd, void* into, size_t count, off_t offset) { return read_at("pread", fd, into, count, offset); }
ssize_t pread64(int fd, void* into, size_t count, off_t offset) { return read_at("pread64", fd, into, count, offset); }

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  int (*real)(unsigned, void*, unsigned);
  *(void**)&real = dlsym(RTLD_NEXT, "io_uring_queue_init");
  /* A library of an extension module's own is in nobody's scope but its own. */
  void* library = real == NULL ? dlopen("liburing.so.2", RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (library != NULL) *(void**)&real = dlsym(library, "io_uring_queue_init");
  return getenv("UNREADABLE") != NULL || real == NULL ? -ENOSYS : real(entries, ring, flags);
}
