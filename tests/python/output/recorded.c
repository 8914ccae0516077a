/* Preloaded by tests: writes down what a process does to the files below RECORDED, a directory, in the order in which it
 * does it, so that tests/python/output/power_cuts.py can say what a power cut leaves. RECORD is the file it is written to.
 *
 * One call at a time is let through, over all threads and processes. A record is a line of words, then as many bytes as
 * the line's last word says:
 *
 *   file DIRECTORY INODE LENGTH   NAME            a new regular file has the name
 *   folder DIRECTORY INODE LENGTH   NAME
 *   link DIRECTORY INODE LENGTH   NAME            one more name of a file
 *   symlink DIRECTORY INODE LENGTH   NAME, a zero byte, what it names
 *   unlink DIRECTORY LENGTH   NAME
 *   rename DIRECTORY DIRECTORY EXCHANGED LENGTH   NAME, a zero byte, NAME; EXCHANGED: 1 where they change places
 *   write INODE OFFSET LENGTH   the bytes
 *   zeros INODE OFFSET COUNT 0    so many bytes, all zero
 *   length INODE NEW 0            cut or grown
 *   sync INODE 0                  of a file or directory: what came before is durable
 *   say LENGTH                    bytes written to standard output or standard error
 *
 * Flushes are not passed on, so that recording is quick on any drive. io_uring, whose transfers no library sees, is not
 * there; neither are sendfile and copy_file_range, and where NO_EXCHANGE is set, names cannot change places. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

typedef unsigned long long Number;

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int record = -1;
static dev_t device;

/* ---- the inodes below RECORDED */

static Number* known;
static size_t known_count, known_room;

static int is_known(Number inode) {
  for (size_t i = 0; i < known_count; ++i) {
    if (known[i] == inode) return 1;
  }
  return 0;
}

static void know(Number inode) {
  if (is_known(inode)) return;
  if (known_count == known_room) {
    known_room = known_room ? 2 * known_room : 256;
    known = realloc(known, known_room * sizeof *known);
  }
  known[known_count++] = inode;
}

/* Its last name is gone: the file system gives the number to what is made next, wherever that is. */
static void forget(Number inode) {
  for (size_t i = 0; i < known_count; ++i) {
    if (known[i] == inode) {
      known[i] = known[--known_count];
      return;
    }
  }
}

static void* next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) abort();
  return found;
}

static void know_all(const char* path) {
  struct stat status;
  if (lstat(path, &status) != 0) return;
  know(status.st_ino);
  if (!S_ISDIR(status.st_mode)) return;
  DIR* folder = opendir(path);
  if (folder == NULL) return;
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char below[PATH_MAX];
    snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
    know_all(below);
  }
  closedir(folder);
}

/* What another process makes is known to this one by its number when it is used: every inode of the directories above it
 * was made below RECORDED, and is looked up again where it is new. */
static void begin(void) {
  const char *root = getenv("RECORDED"), *to = getenv("RECORD");
  struct stat status;
  if (record >= 0 || root == NULL || to == NULL || stat(root, &status) != 0) return;
  device = status.st_dev;
  know_all(root);
  int (*really)(const char*, int, ...) = next("open");
  record = really(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* ---- one call at a time */

static int enter(void) {
  const int before = errno;
  pthread_mutex_lock(&one_at_a_time);
  begin();
  if (record >= 0) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(record, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  errno = before;
  return record >= 0;
}

static void leave(void) {
  const int before = errno;
  if (record >= 0) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(record, F_OFD_SETLK, &lock);
  }
  pthread_mutex_unlock(&one_at_a_time);
  errno = before;
}

static void before_fork(void) { pthread_mutex_lock(&one_at_a_time); }
static void in_parent(void) { pthread_mutex_unlock(&one_at_a_time); }
static void in_child(void) { /* the lock is of an open file, which the child must not share */
  if (record >= 0) close(record);
  record = -1;
  pthread_mutex_unlock(&one_at_a_time);
}
__attribute__((constructor)) static void begin_with_the_process(void) {
  pthread_atfork(before_fork, in_parent, in_child);
  pthread_mutex_lock(&one_at_a_time);
  begin();
  pthread_mutex_unlock(&one_at_a_time);
}

static void put(const void* bytes, size_t count) {
  for (const char* at = bytes; count > 0;) {
    const long done = (long)syscall(SYS_write, record, at, count);
    if (done < 0) abort();
    at += done;
    count -= (size_t)done;
  }
}

__attribute__((format(printf, 3, 4))) static void tell(const void* bytes, size_t count, const char* words, ...) {
  const int before = errno;
  char line[200];
  va_list more;
  va_start(more, words);
  const int length = vsnprintf(line, sizeof line - 30, words, more);
  va_end(more);
  const int all = length + snprintf(line + length, 30, " %zu\n", count);
  put(line, (size_t)all);
  if (count > 0) put(bytes, count);
  errno = before;
}

/* ---- names */

struct Name {
  int inside;       /* its directory is below RECORDED, or RECORDED itself */
  Number directory; /* inode */
  char name[NAME_MAX + 1];
  int taken; /* something has it */
  struct stat status;
};

static struct Name look(int at, const char* path) {
  struct Name out = {0};
  const int before = errno;
  char parent[PATH_MAX];
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') --length;
  if (length >= sizeof parent) return out;
  size_t begin_of_name = length;
  while (begin_of_name > 0 && path[begin_of_name - 1] != '/') --begin_of_name;
  if (length - begin_of_name > NAME_MAX) return out;
  memcpy(out.name, path + begin_of_name, length - begin_of_name);
  memcpy(parent, path, begin_of_name);
  strcpy(parent + begin_of_name, begin_of_name == 0 ? "." : "");
  struct stat status;
  if (fstatat(at, parent, &status, 0) == 0 && status.st_dev == device && is_known(status.st_ino)) {
    out.inside = 1;
    out.directory = status.st_ino;
    out.taken = fstatat(at, path, &out.status, AT_SYMLINK_NOFOLLOW) == 0;
  }
  errno = before;
  return out;
}

/* What had the name has it no more. */
static void lost(const struct Name* name) {
  if (name->taken && (S_ISDIR(name->status.st_mode) || name->status.st_nlink == 1)) forget(name->status.st_ino);
}

/* A new name that was just made. */
static void made(const char* what, int at, const char* path, const struct Name* name) {
  struct stat status;
  if (!name->inside || fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  know(status.st_ino);
  tell(name->name, strlen(name->name), "%s %llu %llu", what, name->directory, (Number)status.st_ino);
}

/* ---- making and opening */

static void opened(int at, const char* path, int flags, const struct Name* name) {
  if (!name->inside) return;
  if (!name->taken && (flags & O_CREAT)) made("file", at, path, name);
  if (name->taken && (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY && S_ISREG(name->status.st_mode)) {
    tell(NULL, 0, "length %llu 0", (Number)name->status.st_ino);
  }
}

static int open_as(const char* which, int at, const char* path, int flags, mode_t mode) {
  if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE) {
    int (*really)(int, const char*, int, ...) = next(which);
    return really(at, path, flags, mode);
  }
  int (*really)(int, const char*, int, ...) = next(which);
  if (!enter()) {
    const int made_without = really(at, path, flags, mode);
    leave();
    return made_without;
  }
  const struct Name name = look(at, path);
  const int file = really(at, path, flags, mode);
  if (file >= 0) opened(at, path, flags, &name);
  leave();
  return file;
}

static mode_t mode_of(int flags, va_list more) {
  return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(more, int) : 0;
}

#define MODE             \
  mode_t mode;           \
  va_list more;          \
  va_start(more, flags); \
  mode = mode_of(flags, more);   \
  va_end(more)

int open(const char* path, int flags, ...) {
  MODE;
  return open_as("openat", AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE;
  return open_as("openat64", AT_FDCWD, path, flags, mode);
}
int openat(int at, const char* path, int flags, ...) {
  MODE;
  return open_as("openat", at, path, flags, mode);
}
int openat64(int at, const char* path, int flags, ...) {
  MODE;
  return open_as("openat64", at, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return open_as("openat", AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char* path, mode_t mode) {
  return open_as("openat64", AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static FILE* fopen_as(const char* which, const char* path, const char* how) {
  FILE* (*really)(const char*, const char*) = next(which);
  enter();
  const struct Name name = record >= 0 ? look(AT_FDCWD, path) : (struct Name){0};
  FILE* file = really(path, how);
  const int flags = how[0] == 'w' ? O_CREAT | O_TRUNC | O_WRONLY : how[0] == 'a' ? O_CREAT | O_WRONLY : O_RDONLY;
  if (file != NULL && record >= 0) opened(AT_FDCWD, path, flags, &name);
  leave();
  return file;
}
FILE* fopen(const char* path, const char* how) { return fopen_as("fopen", path, how); }
FILE* fopen64(const char* path, const char* how) { return fopen_as("fopen64", path, how); }

int mkdirat(int at, const char* path, mode_t mode) {
  int (*really)(int, const char*, mode_t) = next("mkdirat");
  enter();
  const struct Name name = record >= 0 ? look(at, path) : (struct Name){0};
  const int result = really(at, path, mode);
  if (result == 0) made("folder", at, path, &name);
  leave();
  return result;
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from_at, const char* from, int at, const char* path, int flags) {
  int (*really)(int, const char*, int, const char*, int) = next("linkat");
  enter();
  const struct Name name = record >= 0 ? look(at, path) : (struct Name){0};
  const int result = really(from_at, from, at, path, flags);
  if (result == 0) made("link", at, path, &name);
  leave();
  return result;
}
int link(const char* from, const char* path) { return linkat(AT_FDCWD, from, AT_FDCWD, path, 0); }

int symlinkat(const char* to, int at, const char* path) {
  int (*really)(const char*, int, const char*) = next("symlinkat");
  enter();
  const struct Name name = record >= 0 ? look(at, path) : (struct Name){0};
  const int result = really(to, at, path);
  struct stat status;
  if (result == 0 && name.inside && fstatat(at, path, &status, AT_SYMLINK_NOFOLLOW) == 0) {
    char both[NAME_MAX + PATH_MAX + 2];
    const int length = snprintf(both, sizeof both, "%s%c%s", name.name, 0, to);
    know(status.st_ino);
    tell(both, (size_t)length, "symlink %llu %llu", name.directory, (Number)status.st_ino);
  }
  leave();
  return result;
}
int symlink(const char* to, const char* path) { return symlinkat(to, AT_FDCWD, path); }

/* ---- removing and renaming */

int unlinkat(int at, const char* path, int flags) {
  int (*really)(int, const char*, int) = next("unlinkat");
  enter();
  const struct Name name = record >= 0 ? look(at, path) : (struct Name){0};
  const int result = really(at, path, flags);
  if (result == 0 && name.inside) {
    tell(name.name, strlen(name.name), "unlink %llu", name.directory);
    lost(&name);
  }
  leave();
  return result;
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int before = errno;
  if (unlinkat(AT_FDCWD, path, 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return -1;
  errno = before;
  return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

static int rename_as(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  enter();
  const struct Name old = record >= 0 ? look(from_at, from) : (struct Name){0};
  const struct Name new = record >= 0 ? look(to_at, to) : (struct Name){0};
  int (*really)(int, const char*, int, const char*, unsigned) = next("renameat2");
  if ((flags & 2) && getenv("NO_EXCHANGE") != NULL) {
    leave();
    errno = EINVAL;
    return -1;
  }
  const int result = really(from_at, from, to_at, to, flags);
  const int same = old.taken && new.taken && old.status.st_ino == new.status.st_ino;  /* two links: nothing happens */
  if (result == 0 && old.inside && new.inside && !same) {
    char both[2 * NAME_MAX + 3];
    const int length = snprintf(both, sizeof both, "%s%c%s", old.name, 0, new.name);
    tell(both, (size_t)length, "rename %llu %llu %d", old.directory, new.directory, (flags & 2) != 0);
    if (!(flags & 2)) lost(&new);
  } else if (result == 0 && old.inside) {
    tell(old.name, strlen(old.name), "unlink %llu", old.directory);
  } else if (result == 0 && new.inside) {
    abort(); /* what came from elsewhere has bytes that were not seen */
  }
  leave();
  return result;
}
int rename(const char* from, const char* to) { return rename_as(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char* from, int to_at, const char* to) { return rename_as(from_at, from, to_at, to, 0); }
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  return rename_as(from_at, from, to_at, to, flags);
}

long syscall(long number, ...) {
  long word[6];
  va_list more;
  va_start(more, number);
  for (int i = 0; i < 6; ++i) word[i] = va_arg(more, long);
  va_end(more);
  if (number == SYS_renameat2) {
    return rename_as((int)word[0], (const char*)word[1], (int)word[2], (const char*)word[3], (unsigned)word[4]);
  }
  static long (*really)(long, ...);
  if (really == NULL) really = next("syscall");
  return really(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}

/* ---- bytes */

static int is_ours(int file, Number* inode) {
  struct stat status;
  const int before = errno;
  const int found = record >= 0 && fstat(file, &status) == 0 && status.st_dev == device && is_known(status.st_ino) &&
                    (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
  *inode = found ? (Number)status.st_ino : 0;
  errno = before;
  return found;
}

/* Whether the call is one that is to be written down; then it has the lock. */
static int enter_for(int file, Number* inode) {
  if (record < 0 && getenv("RECORD") == NULL) return 0;
  if (!enter()) {
    leave();
    return 0;
  }
  if (is_ours(file, inode)) return 1;
  leave();
  return 0;
}

static void wrote(Number inode, long long offset, const char* bytes, ssize_t count) {
  if (count <= 0) return;
  if (bytes[0] == 0 && memcmp(bytes, bytes + 1, (size_t)count - 1) == 0) {
    tell(NULL, 0, "zeros %llu %lld %zd", inode, offset, count);
  } else {
    tell(bytes, (size_t)count, "write %llu %lld", inode, offset);
  }
}

ssize_t write(int file, const void* bytes, size_t count) {
  ssize_t (*really)(int, const void*, size_t) = next("write");
  Number inode = 0;
  if (file == 1 || file == 2) {
    if (enter()) tell(bytes, count, "say");
    leave();
  }
  if (!enter_for(file, &inode)) return really(file, bytes, count);
  const ssize_t done = really(file, bytes, count);
  if (done > 0) wrote(inode, (long long)lseek(file, 0, SEEK_CUR) - done, bytes, done);
  leave();
  return done;
}

static ssize_t pwrite_as(int file, const void* bytes, size_t count, off64_t offset) {
  ssize_t (*really)(int, const void*, size_t, off64_t) = next("pwrite64");
  Number inode = 0;
  if (!enter_for(file, &inode)) return really(file, bytes, count, offset);
  const ssize_t done = really(file, bytes, count, offset);
  wrote(inode, offset, bytes, done);
  leave();
  return done;
}
ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) { return pwrite_as(file, bytes, count, offset); }
ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t offset) {
  return pwrite_as(file, bytes, count, offset);
}

/* In parts, each a write: as a kernel that takes less than it was given does it. */
ssize_t writev(int file, const struct iovec* parts, int count) {
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = write(file, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return all > 0 ? all : -1;
    all += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return all;
}
static ssize_t pwritev_as(int file, const struct iovec* parts, int count, off64_t offset) {
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = pwrite_as(file, parts[i].iov_base, parts[i].iov_len, offset + all);
    if (done < 0) return all > 0 ? all : -1;
    all += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return all;
}
ssize_t pwritev(int file, const struct iovec* parts, int count, off_t offset) {
  return pwritev_as(file, parts, count, offset);
}
ssize_t pwritev64(int file, const struct iovec* parts, int count, off64_t offset) {
  return pwritev_as(file, parts, count, offset);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t count) {
  (void)to, (void)from, (void)offset, (void)count;
  errno = ENOTSOCK; /* Python copies by hand then */
  return -1;
}
ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) { return sendfile(to, from, offset, count); }
ssize_t copy_file_range(int from, off64_t* at, int to, off64_t* to_at, size_t count, unsigned flags) {
  (void)from, (void)at, (void)to, (void)to_at, (void)count, (void)flags;
  errno = ENOSYS;
  return -1;
}

static void grew(int file, Number inode) {
  struct stat status;
  if (fstat(file, &status) == 0) tell(NULL, 0, "length %llu %lld", inode, (long long)status.st_size);
}

int ftruncate(int file, off_t length) {
  int (*really)(int, off_t) = next("ftruncate");
  Number inode = 0;
  const int ours = enter_for(file, &inode);
  const int result = really(file, length);
  if (ours && result == 0) grew(file, inode);
  if (ours) leave();
  return result;
}
int ftruncate64(int file, off64_t length) { return ftruncate(file, length); }

int truncate(const char* path, off_t length) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const int result = ftruncate(file, length);
  close(file);
  return result;
}
int truncate64(const char* path, off64_t length) { return truncate(path, length); }

int fallocate(int file, int mode, off_t offset, off_t count) {
  int (*really)(int, int, off_t, off_t) = next("fallocate");
  Number inode = 0;
  const int ours = enter_for(file, &inode);
  const int result = really(file, mode, offset, count);
  if (ours && result == 0) grew(file, inode);
  if (ours) leave();
  return result;
}
int fallocate64(int file, int mode, off64_t offset, off64_t count) { return fallocate(file, mode, offset, count); }
int posix_fallocate(int file, off_t offset, off_t count) { return fallocate(file, 0, offset, count) == 0 ? 0 : errno; }

static int sync_as(const char* which, int file) {
  int (*really)(int) = next(which);
  Number inode = 0;
  if (!enter_for(file, &inode)) return really(file);
  tell(NULL, 0, "sync %llu", inode);
  leave();
  return 0;
}
int fsync(int file) { return sync_as("fsync", file); }
int fdatasync(int file) { return sync_as("fdatasync", file); }

int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) {
  (void)entries, (void)ring, (void)flags;
  return -ENOSYS;
}
