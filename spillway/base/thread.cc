#include "spillway/base/thread.h"

#include "spillway/base/error.h"

namespace spillway {

void refuse_thread(const std::system_error& error) {
  throw Error(ErrorCode::io,
              text("cannot start a thread: ", error.code().message(),
                   ". Raise the limits of processes and of memory (ulimit -u, ulimit -v, those of a container), or use "
                   "fewer threads"),
              error.code().value());
}

}  // namespace spillway
