// A file system that seems full, for tests of what happens half-way.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "spillway/base/bytes.h"

namespace spillway::storage::testing {

/// Files of this process may not grow beyond `bytes`; undone at the end of its life.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(Bytes bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

}  // namespace spillway::storage::testing
