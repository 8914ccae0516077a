/* Preloaded into a process under test: reads and writes of files whose name has HELD_NAME in it wait, each for HELD_MS
 * milliseconds or, where that is 0, for as long as there is a file HELD_PLACE/hold. The first of them makes
 * HELD_PLACE/reached. io_uring is not there, so that threads do the transfers. Without HELD_PLACE/hold nothing waits, and
 * without HELD_PLACE io_uring is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_there(const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("HELD_PLACE"), name);
  return access(path, F_OK) == 0;
}

static void make(const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("HELD_PLACE"), name);
  const int made = open(path, O_CREAT | O_WRONLY, 0600);
  if (made >= 0) close(made);
}

static int is_meant(int file, const char* call) {
  if (getenv("HELD_PLACE") == NULL || strcmp(getenv("HELD_CALL"), call) != 0 || !is_there("hold")) return 0;
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, name, sizeof name - 1);
  if (length < 0) return 0;
  name[length] = 0;
  return strstr(name, getenv("HELD_NAME")) != NULL;
}

static void hold(int file, const char* call) {
  if (!is_meant(file, call)) return;
  if (!is_there("reached")) make("reached");
  const long milliseconds = atol(getenv("HELD_MS"));
  const struct timespec all = {milliseconds / 1000, milliseconds % 1000 * 1000000}, some = {0, 5000000};
  if (milliseconds > 0) nanosleep(&all, NULL);
  while (milliseconds == 0 && is_there("hold")) nanosleep(&some, NULL);
}

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

ssize_t pread64(int file, void* into, size_t bytes, off64_t at) {
  hold(file, "pread");
  return ((ssize_t(*)(int, void*, size_t, off64_t))next("pread64"))(file, into, bytes, at);
}
ssize_t pread(int file, void* into, size_t bytes, off_t at) { return pread64(file, into, bytes, at); }

ssize_t pwrite64(int file, const void* from, size_t bytes, off64_t at) {
  hold(file, "pwrite");
  return ((ssize_t(*)(int, const void*, size_t, off64_t))next("pwrite64"))(file, from, bytes, at);
}
ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) { return pwrite64(file, from, bytes, at); }

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  int (*real)(unsigned, void*, unsigned);
  *(void**)&real = dlsym(RTLD_NEXT, "io_uring_queue_init");
  /* A library of an extension module's own is in nobody's scope but its own. */
  void* library = real == NULL ? dlopen("liburing.so.2", RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (library != NULL) *(void**)&real = dlsym(library, "io_uring_queue_init");
  return getenv("HELD_PLACE") != NULL || real == NULL ? -ENOSYS : real(entries, ring, flags);
}
