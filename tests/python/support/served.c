/* A file system whose server is slow, away or in trouble, as a remote one's may be: what lies in BACKING is shown at
 * MOUNTPOINT, and every request first passes here. Lines on standard input say how, and each is answered by "done":
 *
 *   away            from now on every request waits
 *   back            and goes on; the next begin anew
 *   fail ERRNO      every request ends with that error; 0: none does
 *   rate BYTES      a second are read, and so many written, of all files together; 0: as many as can be
 *
 * "ready" is said when it is mounted, "waits" at the first request that waits since `away`. It ends, and takes its mount
 * with it, at the end of its input. Nothing is cached, so that no request is answered without the server. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST 1048576 /* bytes of one request */
#define TEXT(number) WORDS(number)
#define WORDS(number) #number

static int backing;            /* descriptor of the directory */
static const char* mountpoint; /* where it is shown */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int is_away, has_waited, failure; /* guarded by the mutex, as what follows */
static double rate;                      /* bytes per second in each direction; 0: no limit */

/* A direction of the link: the second, by CLOCK_MONOTONIC, at which it has moved all that was given to it. */
static double read_until, written_until;

static void say(const char* what) {
  printf("%s\n", what);
  fflush(stdout);
}

/* What every request begins with: 0, or the error it ends with. */
static int enter(void) {
  pthread_mutex_lock(&mutex);
  if (is_away && !has_waited) {
    has_waited = 1;
    say("waits");
  }
  while (is_away) pthread_cond_wait(&changed, &mutex);
  const int error = failure;
  pthread_mutex_unlock(&mutex);
  return -error;
}

/* Waits until the bytes have passed a direction of the link. */
static void pass(double* until, size_t bytes) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const double now = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
  pthread_mutex_lock(&mutex);
  if (*until < now) *until = now;
  if (rate > 0) *until += (double)bytes / rate;
  const double end = *until;
  pthread_mutex_unlock(&mutex);
  time.tv_sec = (time_t)end;
  time.tv_nsec = (long)(1e9 * (end - (double)time.tv_sec));
  while (end > now && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {}
}

static const char* relative(const char* path) { return path[1] == 0 ? "." : path + 1; }
static int result(long value) { return value < 0 ? -errno : 0; }

/* A request without an answer but its success. */
#define ANSWER(call)           \
  do {                         \
    const int error = enter(); \
    if (error) return error;   \
    return result(call);       \
  } while (0)

static int get_attributes(const char* path, struct stat* to, struct fuse_file_info* file) {
  ANSWER(file ? fstat((int)file->fh, to) : fstatat(backing, relative(path), to, AT_SYMLINK_NOFOLLOW));
}
static int get_access(const char* path, int mode) { ANSWER(faccessat(backing, relative(path), mode, 0)); }
static int get_space(const char* path, struct statvfs* to) {
  (void)path;
  ANSWER(fstatvfs(backing, to));
}
static int make_directory(const char* path, mode_t mode) { ANSWER(mkdirat(backing, relative(path), mode)); }
static int remove_directory(const char* path) { ANSWER(unlinkat(backing, relative(path), AT_REMOVEDIR)); }
static int remove_file(const char* path) { ANSWER(unlinkat(backing, relative(path), 0)); }
static int rename_file(const char* from, const char* to, unsigned flags) {
  ANSWER(renameat2(backing, relative(from), backing, relative(to), flags));
}
static int set_mode(const char* path, mode_t mode, struct fuse_file_info* file) {
  ANSWER(file ? fchmod((int)file->fh, mode) : fchmodat(backing, relative(path), mode, 0));
}
static int set_times(const char* path, const struct timespec times[2], struct fuse_file_info* file) {
  ANSWER(file ? futimens((int)file->fh, times) : utimensat(backing, relative(path), times, AT_SYMLINK_NOFOLLOW));
}
static int set_length(const char* path, off_t length, struct fuse_file_info* file) {
  const int error = enter();
  if (error) return error;
  if (file) return result(ftruncate((int)file->fh, length));
  const int opened = openat(backing, relative(path), O_WRONLY | O_CLOEXEC);
  if (opened < 0) return -errno;
  const int cut = result(ftruncate(opened, length));
  close(opened);
  return cut;
}
static int set_space(const char* path, int mode, off_t offset, off_t bytes, struct fuse_file_info* file) {
  (void)path;
  ANSWER(fallocate((int)file->fh, mode, offset, bytes));
}

static int opened(const char* path, int flags, mode_t mode, struct fuse_file_info* file) {
  const int error = enter();
  if (error) return error;
  const int descriptor = openat(backing, relative(path), (flags & ~(O_APPEND | O_DIRECT)) | O_CLOEXEC, mode);
  if (descriptor < 0) return -errno;
  file->fh = (uint64_t)descriptor;
  file->direct_io = 1;
  return 0;
}
static int open_file(const char* path, struct fuse_file_info* file) { return opened(path, file->flags, 0, file); }
static int make_file(const char* path, mode_t mode, struct fuse_file_info* file) {
  return opened(path, file->flags | O_CREAT, mode, file);
}
static int close_file(const char* path, struct fuse_file_info* file) {
  (void)path;
  close((int)file->fh);
  return 0;
}
static int read_file(const char* path, char* to, size_t bytes, off_t at, struct fuse_file_info* file) {
  (void)path;
  const int error = enter();
  if (error) return error;
  const ssize_t moved = pread((int)file->fh, to, bytes, at);
  if (moved > 0) pass(&read_until, (size_t)moved);
  return moved < 0 ? -errno : (int)moved;
}
static int write_file(const char* path, const char* from, size_t bytes, off_t at, struct fuse_file_info* file) {
  (void)path;
  const int error = enter();
  if (error) return error;
  pass(&written_until, bytes);
  const ssize_t moved = pwrite((int)file->fh, from, bytes, at);
  return moved < 0 ? -errno : (int)moved;
}
static int flush_file(const char* path, int only_data, struct fuse_file_info* file) {
  (void)path;
  ANSWER(only_data ? fdatasync((int)file->fh) : fsync((int)file->fh));
}
static int flush_directory(const char* path, int only_data, struct fuse_file_info* file) {
  (void)path, (void)only_data, (void)file;
  ANSWER(fsync(backing));
}
static int list_directory(const char* path, void* to, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info* file,
                          enum fuse_readdir_flags flags) {
  (void)offset, (void)file, (void)flags;
  const int error = enter();
  if (error) return error;
  const int opened = openat(backing, relative(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = opened < 0 ? NULL : fdopendir(opened);
  if (directory == NULL) return -errno;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) fill(to, entry->d_name, NULL, 0, 0);
  closedir(directory);
  return 0;
}

static void let_go(void) {
  is_away = has_waited = 0;
  pthread_cond_broadcast(&changed);
}

/* What one line asks for; 0 where it asks for nothing known. */
static int obey(const char* line) {
  int error = 0;
  double bytes = 0;
  pthread_mutex_lock(&mutex);
  int known = 1;
  if (strcmp(line, "away\n") == 0) {
    is_away = 1;
  } else if (strcmp(line, "back\n") == 0) {
    let_go();
  } else if (sscanf(line, "fail %d", &error) == 1) {
    failure = error;
  } else if (sscanf(line, "rate %lf", &bytes) == 1) {
    rate = bytes;
  } else {
    known = 0;
  }
  if (known) say("done");
  pthread_mutex_unlock(&mutex);
  return known;
}

static void* follow_orders(void* unused) {
  char line[256];
  while (fgets(line, sizeof line, stdin) != NULL && obey(line)) {}
  pthread_mutex_lock(&mutex);
  failure = EIO;
  let_go();
  pthread_mutex_unlock(&mutex);
  umount2(mountpoint, MNT_DETACH);
  _exit(0);
  return unused;
}

static void* mounted(struct fuse_conn_info* connection, struct fuse_config* settings) {
  connection->max_read = MOST;
  settings->entry_timeout = settings->attr_timeout = settings->negative_timeout = 0;
  pthread_t orders;
  pthread_create(&orders, NULL, follow_orders, NULL);
  say("ready");
  return NULL;
}

static const struct fuse_operations operations = {
    .init = mounted,          .getattr = get_attributes, .access = get_access,       .statfs = get_space,
    .mkdir = make_directory,  .rmdir = remove_directory, .unlink = remove_file,      .rename = rename_file,
    .chmod = set_mode,        .utimens = set_times,      .truncate = set_length,     .fallocate = set_space,
    .open = open_file,        .create = make_file,       .release = close_file,      .read = read_file,
    .write = write_file,      .fsync = flush_file,       .fsyncdir = flush_directory, .readdir = list_directory};

int main(int count, char** words) {
  if (count != 3 || (backing = open(words[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
    fprintf(stderr, "usage: %s BACKING MOUNTPOINT\n", words[0]);
    return 2;
  }
  mountpoint = words[2];
  char* passed[] = {words[0], words[2], "-f", "-o", "fsname=served,max_threads=32,max_read=" TEXT(MOST)};
  return fuse_main((int)(sizeof passed / sizeof *passed), passed, &operations, NULL);
}
