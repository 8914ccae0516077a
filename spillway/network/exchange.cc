#include "spillway/network/exchange.h"

#include <exception>
#include <utility>

#include "spillway/base/mutex.h"

namespace spillway::network {
namespace {

struct Ending {
  Mutex mutex;
  Condition ended;
  bool done SPILLWAY_GUARDED_BY(mutex) = false;
  std::exception_ptr error SPILLWAY_GUARDED_BY(mutex);
};

}  // namespace

void exchange(Port& port, std::vector<Message> messages) {
  Ending ending;
  port.start(std::move(messages), [&ending](const std::exception_ptr& error) {
    const MutexLock lock(ending.mutex);
    ending.error = error;
    ending.done = true;
    ending.ended.notify_one();
  });
  MutexLock lock(ending.mutex);
  while (!ending.done) ending.ended.wait(lock);
  if (ending.error) std::rethrow_exception(ending.error);
}

}  // namespace spillway::network
