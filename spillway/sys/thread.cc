#include "spillway/sys/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace spillway::sys {

void enter_service_thread(const std::string& name) noexcept {
  char cut[16] = {};
  name.copy(cut, sizeof cut - 1);
  pthread_setname_np(pthread_self(), cut);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

void lower_priority(int nice) noexcept {
  constexpr int kMost = 19;
  const auto thread = static_cast<id_t>(::gettid());  // of the thread, on Linux
  static_cast<void>(::setpriority(PRIO_PROCESS, thread, std::min(kMost, ::getpriority(PRIO_PROCESS, thread) + nice)));
}

int current_cpu() noexcept {
  return ::sched_getcpu();
}

double process_cpu_seconds() noexcept {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace spillway::sys
