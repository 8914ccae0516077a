#include "spillway/sys/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

namespace spillway::sys {

void enter_service_thread(const std::string& name) noexcept {
  char cut[16] = {};
  name.copy(cut, sizeof cut - 1);
  pthread_setname_np(pthread_self(), cut);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void lower_priority() noexcept {
  constexpr int kNice = 10;
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));  // of the thread, on Linux
}

double process_cpu_seconds() noexcept {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace spillway::sys
